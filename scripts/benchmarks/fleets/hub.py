"""What a hub costs: 1,250 agents at once, and the disk that a week takes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from benchmarks.workloads.recorded_week import HOUR_SAMPLES, HOURS, hour_of_samples
from benchmarks.workloads.simulated_fleet import KEY
from hetero_hvd.core.recording.segments import encode_piece
from hetero_hvd.errors import JobError

NUM_AGENTS = 1250
MAX_WAIT_SECONDS = 5.0
"""An agent whose sample waits for longer falls behind."""

MAX_MEMORY_BYTES = 2**29
MAX_CPU_RATIO = 0.5
WEEK_SAMPLES = HOURS * HOUR_SAMPLES
GOALS_BYTES = {8: 300e6, 1: 100e6}


def hub(effort: Effort, say: Say) -> Iterator[Table]:
    """A hub, and what it stores."""
    seconds = 120.0 if effort.repeats > 1 else 20.0
    say(f"{NUM_AGENTS} agents for {seconds:g} s")
    with tempfile.TemporaryDirectory() as place:
        yield _fleet(Path(place), seconds)
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


def _served(place: Path, seconds: float) -> _FleetRun:
    key = place / "cluster.key"
    key.write_text(KEY.hex())
    key.chmod(0o600)
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        port = str(end.getsockname()[1])
    words = ["hub", "--key-file", str(key), "--store", str(place / "hub")]
    words += ["--address", "127.0.0.1", "--port", port]
    with subprocess.Popen([sys.executable, "-m", "hetero_hvd", *words]) as process:
        try:
            _wait_for(int(port))
            program = "benchmarks.workloads.simulated_fleet"
            vector = [sys.executable, "-m", program, port, str(NUM_AGENTS), str(seconds)]
            known = psutil.Process(process.pid)
            begins = known.cpu_times()
            done = subprocess.run(vector, capture_output=True, text=True, check=False)
            if done.returncode:
                raise JobError(f"the simulated agents have ended: {done.stderr[-300:]}")
            ends, memory = known.cpu_times(), known.memory_info().rss
        finally:
            process.kill()
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
