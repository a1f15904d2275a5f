"""What a hub costs: 1,250 agents at once, an agent of its own, and the disk that a week takes."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import NamedTuple, Self

import psutil

from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from benchmarks.workloads.recorded_week import HOUR_SAMPLES, HOURS, hour_of_samples
from benchmarks.workloads.simulated_fleet import KEY
from hetero_hvd.core.recording.segments import encode_piece
from hetero_hvd.discovery.hub_client import HubOrders
from hetero_hvd.errors import JobError
from tests.fake_nvml.library import build, environment

NUM_AGENTS = 1250
MAX_WAIT_SECONDS = 5.0
"""An agent whose sample waits for longer falls behind."""

MAX_MEMORY_BYTES = 2**29
MAX_CPU_RATIO = 0.5
AGENT_GOALS = {1: 0.01, 2: 0.02}
"""Samples a second to the part of a core that an agent may take."""

SETTLE_SECONDS = 20.0
"""Until an agent has started its sampler, and until that has another rate."""

KEY_FILE = "cluster.key"
WEEK_SAMPLES = HOURS * HOUR_SAMPLES
GOALS_BYTES = {8: 300e6, 1: 100e6}


def hub(effort: Effort, say: Say) -> Iterator[Table]:
    """A hub, and what it stores."""
    seconds = 120.0 if effort.repeats > 1 else 20.0
    say(f"{NUM_AGENTS} agents for {seconds:g} s")
    with tempfile.TemporaryDirectory() as place:
        yield _fleet(Path(place), seconds)
    if which("gcc"):
        say(f"an agent for {len(AGENT_GOALS)} times {seconds / 2:g} s")
        with tempfile.TemporaryDirectory() as place:
            yield _agent(Path(place), seconds / 2)
    say("a week of one node")
    yield _week()


class _FleetRun(NamedTuple):
    """What a hub took to serve the agents.

    Attributes:
        told: What the agents have measured.
        cpu_seconds: Processor time of the hub.
        memory_bytes: Of the hub at the end.
        stored_bytes: Of its folder.
    """

    told: dict[str, float]
    cpu_seconds: float
    memory_bytes: int
    stored_bytes: int


@contextmanager
def _running_hub(place: Path) -> Iterator[tuple[psutil.Process, int]]:
    """A hub of this machine and its port, which listens; its key is in the folder."""
    key = place / KEY_FILE
    key.write_text(KEY.hex())
    key.chmod(0o600)
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        port = int(end.getsockname()[1])
    words = ["hub", "--key-file", str(key), "--store", str(place / "hub")]
    words += ["--address", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen([sys.executable, "-m", "hetero_hvd", *words]) as process:
        try:
            _wait_for(port)
            yield psutil.Process(process.pid), port
        finally:
            process.kill()


def _served(place: Path, seconds: float) -> _FleetRun:
    with _running_hub(place) as (known, port):
        program = "benchmarks.workloads.simulated_fleet"
        vector = [sys.executable, "-m", program, str(port), str(NUM_AGENTS), str(seconds)]
        begins = known.cpu_times()
        done = subprocess.run(vector, capture_output=True, text=True, check=False)
        if done.returncode:
            raise JobError(f"the simulated agents have ended: {done.stderr[-300:]}")
        ends, memory = known.cpu_times(), known.memory_info().rss
    stored = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    cpu = ends.user + ends.system - begins.user - begins.system
    return _FleetRun(json.loads(done.stdout), cpu, memory, stored)


def _fleet(place: Path, seconds: float) -> Table:
    told, cpu, memory, stored = _served(place, seconds)
    longest, samples = told["max_seconds"], round(told["samples"])
    ratio = NUM_AGENTS * cpu / samples
    return Table(
        title="A hub and its agents",
        text=f"{NUM_AGENTS} simulated agents of machines without GPUs, each with a connection by "
        f"TLS, send a sample a second for {seconds:g} s, beside the hub on this machine. A sample "
        "waits from when it is due until the hub has acknowledged it. Processor time of the hub "
        "has the TLS handshakes in it, and not that of the process that seals. On a machine that "
        "others use too the agents themselves are late, and their samples wait.",
        columns=("samples", "wait: median, p99, longest", "hub", "its memory", "its disk"),
        rows=[
            (
                f"{samples}",
                f"{told['median_seconds']:.2f}, {told['p99_seconds']:.2f}, {longest:.2f} s",
                f"{1e6 * cpu / samples:.0f} µs a sample",
                f"{memory / 2**20:.0f} MiB",
                f"{stored / samples:.0f} bytes a sample",
            )
        ],
        numbers=[
            Number(
                quantity=f"longest wait of {NUM_AGENTS} agents at 1 Hz",
                goal=f"<= {MAX_WAIT_SECONDS:g} s",
                found=f"{longest:.1f} s",
                is_reached=longest <= MAX_WAIT_SECONDS,
            ),
            Number(
                quantity=f"processor of the hub with {NUM_AGENTS} agents at 1 Hz",
                goal=f"<= {MAX_CPU_RATIO:.0%} of a core",
                found=f"{ratio:.0%}",
                is_reached=ratio <= MAX_CPU_RATIO,
            ),
            Number(
                quantity="memory of the hub",
                goal=f"<= {MAX_MEMORY_BYTES / 2**20:.0f} MiB",
                found=f"{memory / 2**20:.0f} MiB",
                is_reached=memory <= MAX_MEMORY_BYTES,
            ),
        ],
    )


def _agent(place: Path, seconds: float) -> Table:
    """One that samples this machine and a stand-in's GPUs, with its sampler."""
    told = place / "gpus"
    told.mkdir()
    own = environment(build(place), told=told)
    with _running_hub(place) as (_, port), _running_agent(place, port, own) as pid:
        orders = HubOrders(place / KEY_FILE, f"127.0.0.1:{port}")
        rates = [_AgentRate.measured(orders, pid, hertz, seconds) for hertz in AGENT_GOALS]
    return Table(
        title="An agent that streams to a hub",
        text=f"Processor time of `hetero-hvd agent` and of its sampler in {seconds:g} s, as a part "
        "of one core. It samples this machine and two GPUs of a stand-in for NVML, which answers "
        "at once: a real NVML takes 40 ms for each GPU, most of which it waits.",
        columns=("wanted", "reached", "processor"),
        rows=[(f"{r.hertz} Hz", f"{r.reached_hertz:.2f} Hz", f"{r.ratio:.2%}") for r in rates],
        numbers=[
            Number(
                quantity=f"processor of an agent at {rate.hertz} Hz",
                goal=f"<= {AGENT_GOALS[rate.hertz]:.0%} of a core",
                found=f"{rate.ratio:.2%}",
                is_reached=rate.ratio <= AGENT_GOALS[rate.hertz],
            )
            for rate in rates
        ],
    )


@contextmanager
def _running_agent(place: Path, port: int, own: Mapping[str, str]) -> Iterator[int]:
    """An agent of that hub; gives the id of its process."""
    words = ["agent", "--key-file", KEY_FILE, "--name", "alpha", "--slots", "0"]
    words += ["--hub", f"127.0.0.1:{port}", "--address", "127.0.0.1", "--port", "0"]
    vector = [sys.executable, "-m", "hetero_hvd", *words]
    with subprocess.Popen(vector, cwd=place, env=own) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


class _AgentRate(NamedTuple):
    """What an agent took at a rate.

    Attributes:
        hertz: What was wanted.
        reached_hertz: What the hub has stored.
        ratio: Its processor time as a part of one core.
    """

    hertz: int
    reached_hertz: float
    ratio: float

    @classmethod
    def measured(cls, orders: HubOrders, pid: int, hertz: int, seconds: float) -> Self:
        """Have the hub ask for the rate, and look on."""
        order = {"name": f"at-{hertz}-hertz", "every_seconds": 1 / hertz}
        asyncio.run(orders("start", order))
        time.sleep(SETTLE_SECONDS)
        begins, samples = _cpu_of_all(pid), _num_stored(orders)
        time.sleep(seconds)
        ratio = (_cpu_of_all(pid) - begins) / seconds
        return cls(hertz, (_num_stored(orders) - samples) / seconds, ratio)


def _num_stored(orders: HubOrders) -> int:
    (node,) = asyncio.run(orders("status", {}))["nodes"]
    return int(node["samples"])


def _cpu_of_all(process_id: int) -> float:
    """Processor time of a process and of all that it has started, seconds."""
    one = psutil.Process(process_id)
    times = [each.cpu_times() for each in (one, *one.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as end:
            if not end.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)
    raise JobError("the hub does not listen")


def _week() -> Table:
    """From an hour of samples as NVML tells them, that change as much as those of a training."""
    rows: list[Sequence[str]] = []
    numbers: list[Number] = []
    for devices, goal in GOALS_BYTES.items():
        frames = hour_of_samples(devices)
        began = time.process_time()
        each = len(encode_piece(frames)) / HOUR_SAMPLES
        seconds = (time.process_time() - began) / HOUR_SAMPLES
        week = each * WEEK_SAMPLES
        raw = len(frames[0].sample)
        rows.append(
            (
                f"{devices}",
                f"{raw} bytes",
                f"{each:.0f} bytes",
                f"{1e6 * seconds:.0f} µs",
                f"{week / 1e6:.0f} MB",
            )
        )
        numbers.append(
            Number(
                quantity=f"a week of a node with {devices} GPUs at 2 Hz",
                goal=f"<= {goal / 1e6:.0f} MB",
                found=f"{week / 1e6:.0f} MB",
                is_reached=week <= goal,
            )
        )
    return Table(
        title="A week on the hub's disk",
        text="One node at 2 Hz, sealed in pieces of an hour, all figures of a sample: for each GPU "
        "use, memory, temperature, power, energy, two clocks, throttling, PCIe and NVLink "
        "both ways, errors and processes. The figures are drawn: use, clocks and temperature by "
        "NVML's steps, power in milliwatts, rates at random.",
        columns=("GPUs", "a sample as sent", "stored", "to seal it", "a week"),
        rows=rows,
        numbers=numbers,
    )
