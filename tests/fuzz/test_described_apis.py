"""An HTTP API does what its own document says: schemathesis finds nothing.

It makes requests of the document, right and wrong ones, and holds the answers against it: no
status, type or form that is not described, no wrong request that is taken, none without a token.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager

import pytest

from hetero_hvd.config import JobConfig
from hetero_hvd.core.view.live import LiveState, WorkerView
from hetero_hvd.core.view.plots.run_plots import RunPlots
from hetero_hvd.errors import UserError
from hetero_hvd.hub.http.api import EVENTS
from hetero_hvd.run.web import Web
from hetero_hvd.run.web.app import Sources
from hetero_hvd.run.web.operations import DOCUMENT
from hetero_hvd.run.web.scraping.metrics import Metrics
from tests.hub.rig import HubProcess, free_port

TOKEN = "t" * 20
CONFIG = f"""
generation.database = "none"
headers = {{ Authorization = "Bearer {TOKEN}" }}

[checks]
negative_data_rejection.expected-statuses = ["4xx"]
positive_data_acceptance.expected-statuses = ["2xx", "404", "409", "413", "429"]
"""
"""What is too long is refused as that, right or wrong; what is in conflict, as that."""


def token_file(folder):
    """One that holds the token."""
    path = folder / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return str(path)


@contextmanager
def hub(folder):
    """A real one; gives its URL."""
    process = HubProcess(folder)
    port = free_port()
    files = (
        flag for role in ("read", "operate") for flag in (f"--http-{role}-token-file", "token")
    )
    token_file(folder)
    process.start("--http-port", str(port), *files)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()


def drain(target):
    """As a driver of one node does it."""
    if target != "alpha":
        raise UserError("no such node")
    return "alpha leaves"


@contextmanager
def run(folder):
    """The server of a run whose orders are only noted; gives its URL."""
    file = token_file(folder)
    web = Web(JobConfig(http_token_file=file, http_operate_token_file=file), folder)
    metrics = Metrics("demo")
    state = LiveState(
        run_id="demo", state="training", workers=[WorkerView(name="alpha:0", phases={"comm": 0.1})],
        throughput=[(0.0, 10.0)], events=[(0.0, "it is so")],
    )  # fmt: skip
    sources = Sources(
        state=lambda: state, num_events=lambda: 1, status=lambda: {"state": "training"},
        targets=lambda: [{"targets": [web.target], "labels": {}}], drain=drain,
        stop=lambda: "all workers are asked to end", metrics=metrics.render,
        trace=lambda wish: f"{wish['steps']} steps are recorded",
        plots=RunPlots().view, folder=folder,
    )  # fmt: skip
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(web.listen(sources), loop).result(20)
    try:
        yield web.url
    finally:
        asyncio.run_coroutine_threadsafe(web.close(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


SERVERS = {"hub": (hub, EVENTS), "run": (run, "/events")}
EFFORTS = [
    pytest.param(5, id="short", marks=pytest.mark.timeout(300)),
    pytest.param(100, id="long", marks=[pytest.mark.matrix, pytest.mark.timeout(900)]),
]


@pytest.mark.process
@pytest.mark.parametrize("num_examples", EFFORTS)
@pytest.mark.parametrize(("serve", "endless"), SERVERS.values(), ids=SERVERS)
def test_nothing_is_found(tmp_path, serve, endless, num_examples):
    """By requests of its document; a stream of events, which has no end, is left out."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with serve(tmp_path) as url:
        await_document(url)
        vector = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{url}{DOCUMENT}", "--checks", "all",
            "--max-examples", str(num_examples), "--exclude-path", endless, "--seed", "1",
            "--request-timeout", "20", "--no-color",
        ]  # fmt: skip
        done = subprocess.run(
            vector, cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ)
        )
    assert done.returncode == 0, done.stdout + done.stderr


def await_document(url):
    """Wait until it answers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"{url}{DOCUMENT}", timeout=10):  # noqa: S310 - ours
                return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
