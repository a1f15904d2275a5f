"""What the sampler of a node, and who follows it, cost."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import which
from unittest import mock

import psutil

from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from hetero_hvd.errors import JobError
from hetero_hvd.messages import NodeSampled
from hetero_hvd.probes.sampling.local_samples import Told, follow_samples
from tests.fake_nvml.library import build, environment

GOAL_RATIO = 0.01
"""Of a core, at one sample a second."""

START_SECONDS = 15.0


def sampling(effort: Effort, say: Say) -> Iterator[Table]:
    """A node's sampler, with and without GPUs."""
    seconds = 60.0 if effort.repeats > 1 else 10.0
    kinds = {"no GPU": ""}
    with tempfile.TemporaryDirectory() as place:
        if which("gcc"):
            kinds["two GPUs of a stand-in for NVML"] = str(build(Path(place)))
        found = {}
        for kind, library in kinds.items():
            say(f"{kind}: {seconds:g} s")
            found[kind] = _measured(Path(place), library, seconds)
    yield Table(
        title="Sampling a node",
        text=f"Processor time of the sampler's process, and of a process that follows it, in "
        f"{seconds:g} s at one sample a second, as a part of one core. The stand-in answers at "
        "once: a real NVML takes 40 ms for each GPU, most of which it waits.",
        columns=("node", "sampler", "follower", "memory of the sampler", "samples"),
        rows=[
            (
                kind,
                f"{sampler:.2%}",
                f"{follower:.2%}",
                f"{memory_bytes / 2**20:.0f} MiB",
                f"{num_samples}",
            )
            for kind, (sampler, follower, memory_bytes, num_samples) in found.items()
        ],
        numbers=[
            Number(
                quantity=f"a node's sampler at 1 Hz, {kind}",
                goal=f"<= {GOAL_RATIO:.0%} of a core",
                found=f"{sampler:.2%}",
                is_reached=sampler <= GOAL_RATIO,
            )
            for kind, (sampler, *_) in found.items()
        ],
    )


def _measured(place: Path, library: str, seconds: float) -> tuple[float, float, int, int]:
    """Parts of a core that sampler and follower take, the sampler's memory, and the samples."""
    folder = Path(library) if library else place
    own = environment(folder) if library else environment(folder) | {"LD_LIBRARY_PATH": ""}
    samples: list[NodeSampled] = []

    def take(told: Told) -> None:
        if isinstance(told, NodeSampled):
            samples.append(told)

    with mock.patch.dict(os.environ, own), closing(follow_samples("here", take)):
        deadline = time.monotonic() + START_SECONDS
        while not samples and time.monotonic() < deadline:
            time.sleep(0.1)
        if not samples:
            raise JobError("there are no samples of this machine")
        (sampler,) = psutil.Process().children()
        begins = (_cpu_seconds(sampler), time.process_time())
        samples.clear()
        time.sleep(seconds)
        ends = (_cpu_seconds(sampler), time.process_time())
        memory_bytes = sampler.memory_info().rss
    of_sampler, of_follower = (end - begin for begin, end in zip(begins, ends, strict=True))
    return of_sampler / seconds, of_follower / seconds, memory_bytes, len(samples)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
