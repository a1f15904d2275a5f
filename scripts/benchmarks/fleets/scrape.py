"""A large cluster's exporters under a real Prometheus: the driver's, and one per node."""

from __future__ import annotations

import json
import multiprocessing
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from typing import Any

import psutil
from msgspec.structs import replace
from prometheus_client import generate_latest

from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from hetero_hvd.core.simulation.simulation import row_of
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.errors import JobError
from hetero_hvd.messages import StepsTimed, WorkerId, WorkersJoined
from hetero_hvd.probes.machine.node_metrics import node_registry
from hetero_hvd.probes.sampling.node_sampler import NodeSampler
from hetero_hvd.run.web.scraping.metrics import Metrics
from hetero_hvd.run.web.scraping.targets import run_target, service_discovery

NUM_NODES, SLOTS = 1250, 8
INTERVAL_SECONDS, TIMEOUT_SECONDS = 15, 10
"""Of Prometheus; the timeout is its default."""

ROUNDS = 3
NODE = "placeholder"
RUN_ID = "scrape-00000000"


def scrape(effort: Effort, say: Say) -> Iterator[Table]:
    """1,250 nodes of 8 workers under a real Prometheus."""
    if which("prometheus") is None:
        raise JobError("Prometheus is not installed here: apt install prometheus")
    num_nodes = NUM_NODES if effort.repeats > 1 else NUM_NODES // 10
    metrics = _driver(num_nodes)
    began = time.perf_counter()
    page, _ = metrics.render()
    render_seconds = time.perf_counter() - began
    say(f"the driver's page: {len(page) / 1e6:.1f} MB in {render_seconds:.2f} s")
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        port = stack.enter_context(_targets(metrics, num_nodes))
        process, api = stack.enter_context(_prometheus(Path(place), port))
        say(f"{num_nodes} targets, {ROUNDS} rounds of {INTERVAL_SECONDS} s")
        time.sleep((ROUNDS + 1) * INTERVAL_SECONDS)
        found = {
            "up": _value(api, "sum(up)"),
            "slowest node": _value(api, 'max(scrape_duration_seconds{node!=""})'),
            "driver": _value(api, 'max(scrape_duration_seconds{node=""})'),
            "series": _value(api, "sum(scrape_samples_scraped)"),
            "memory": float(psutil.Process(process.pid).memory_info().rss),
        }
    yield _table(num_nodes, found, render_seconds)


def _driver(num_nodes: int) -> Metrics:
    """The exporter of a driver whose workers have all been timed."""
    workers = tuple(WorkerId(f"node{n}", slot) for n in range(num_nodes) for slot in range(SLOTS))
    metrics = Metrics(RUN_ID)
    joined = WorkersJoined(
        rendezvous_id=1,
        workers=workers,
        applied_steps=0,
        global_batch_size=8 * len(workers),
        capacities=(-1,) * len(workers),
        prefetch_steps=0,
    )
    rows = tuple(row_of(8, 0.1) for _ in workers)
    timed = StepsTimed(
        rendezvous_id=1, step=9, epoch=0, loss=1.0, timings=rows, exchange_seconds=0.0
    )
    for _, event in with_tables([(0.0, joined), (0.0, timed), (0.0, timed)]):
        metrics.observe(0.0, event)
    return metrics


class _Handler(BaseHTTPRequestHandler):
    """Answers GET with what `content` makes of the path and the host that was asked for."""

    content: Callable[[str, str], bytes]

    def do_GET(self) -> None:
        content = type(self).content(self.path, self.headers["Host"])
        is_list = self.path == "/sd"
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if is_list else "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024

    def __init__(self, content: Callable[[str, str], bytes]) -> None:
        handler = type("Handler", (_Handler,), {"content": staticmethod(content)})
        super().__init__(("0.0.0.0", 0), handler)  # noqa: S104 - many loopback addresses
        self.port = int(self.socket.getsockname()[1])

    def handle_error(self, *_: object) -> None:
        """Say nothing: a scrape that was given up is in the numbers."""


@contextmanager
def _targets(metrics: Metrics, num_nodes: int) -> Iterator[int]:
    """The driver's exporter with the list of all, and in another process those of the nodes."""
    addresses = {f"node{n}": f"127.1.{n // 250}.{n % 250 + 1}" for n in range(num_nodes)}
    names = {address: name for name, address in addresses.items()}
    page = generate_latest(node_registry(lambda: [replace(NodeSampler().take(), node=NODE)]))
    nodes = _Server(
        lambda _, host: page.replace(NODE.encode(), names[host.partition(":")[0]].encode())
    )

    def driver_content(path: str, host: str) -> bytes:
        if path != "/sd":
            return metrics.render()[0]
        status = {
            "workers": [f"{name}:0" for name in addresses],
            "node_exporters": {name: f"http://{at}:{nodes.port}" for name, at in addresses.items()},
        }
        return json.dumps(service_discovery(status, run_target(f"http://{host}", RUN_ID))).encode()

    child = multiprocessing.get_context("fork").Process(target=nodes.serve_forever, daemon=True)
    child.start()
    with nodes, _Server(driver_content) as driver:
        thread = threading.Thread(target=driver.serve_forever, daemon=True)
        thread.start()
        yield driver.port
        driver.shutdown()
        thread.join()
        child.terminate()
        child.join()


@contextmanager
def _prometheus(folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    scrapes = {
        "job_name": "hetero_hvd",
        "http_sd_configs": [{"url": f"http://127.0.0.1:{port}/sd"}],
    }
    times = {"scrape_interval": f"{INTERVAL_SECONDS}s", "scrape_timeout": f"{TIMEOUT_SECONDS}s"}
    (folder / "prometheus.yml").write_text(
        json.dumps({"global": times, "scrape_configs": [scrapes]})
    )
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{end.getsockname()[1]}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process, f"http://{address}/api/v1/query"
    finally:
        process.terminate()
        process.wait()


def _value(api: str, query: str) -> float:
    url = f"{api}?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own Prometheus
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    if not result:
        raise JobError(f"Prometheus has no answer to {query}")
    return float(result[0]["value"][1])


def _table(num_nodes: int, found: dict[str, float], render_seconds: float) -> Table:
    slowest = max(found["slowest node"], found["driver"])
    return Table(
        title="Prometheus at a large cluster",
        text=f"{num_nodes} node targets and the driver's, listed by its http_sd, with "
        f"{num_nodes * SLOTS} workers, under a real Prometheus: every {INTERVAL_SECONDS} s, "
        f"timeout {TIMEOUT_SECONDS} s. The nodes' exporters are one process on this machine.",
        columns=("quantity", "found"),
        rows=[
            ("targets up", f"{found['up']:.0f} of {num_nodes + 1}"),
            ("samples in a round", f"{found['series']:.0f}"),
            ("longest scrape of a node", f"{found['slowest node']:.2f} s"),
            ("scrape of the driver", f"{found['driver']:.2f} s"),
            ("the driver's page is made in", f"{render_seconds:.2f} s"),
            ("memory of Prometheus", f"{found['memory'] / 2**20:.0f} MiB"),
        ],
        numbers=[
            Number(
                quantity=f"Prometheus scrapes {num_nodes} node targets and the driver",
                goal=f"all up, each within {TIMEOUT_SECONDS} s",
                found=f"{found['up']:.0f} up, longest {slowest:.2f} s",
                is_reached=found["up"] == num_nodes + 1 and slowest < TIMEOUT_SECONDS,
            )
        ],
    )
