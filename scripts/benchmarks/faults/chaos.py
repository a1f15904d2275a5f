"""A job under random faults, and how much of its goodput it keeps: `scripts/chaos`.

Each worker computes as fast as it says (emulation), so the job is the faster the more there are.
The yardstick is what the workers that are alive at each moment would do without faults, measured in
the first seconds of the same job, when nothing goes wrong yet.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults import matrix
from tests.kit.fault_job import NODE_NAMES, FaultJob, write_nodes

POLL_SECONDS = 0.1
CALM_SECONDS = 8.0
FREEZE_SECONDS = 2.0
SLOW_PULSES, PULSE_SECONDS = 10, 0.1
SECONDS_PER_SAMPLE = 0.004
FAULTS = ("kill", "freeze", "stop", "slow", "refill")


@dataclass(kw_only=True)
class Chaos:
    """What to do to a job, and what came of it.

    Attributes:
        job: The job.
        mean_seconds: Mean time between two faults.
        names: Its nodes.
        rng: Decides when what happens to whom.
        happened: Time and name of each fault.
        alive: Time and number of workers that can work.
    """

    job: FaultJob
    mean_seconds: float
    names: list[str]
    rng: random.Random
    happened: list[tuple[float, str]] = field(default_factory=list)
    alive: list[tuple[float, int]] = field(default_factory=list)
    _frozen: dict[int, float] = field(default_factory=dict)
    _url: str = ""

    def run(self, seconds: float) -> None:
        """Let faults happen for so long."""
        end = time.monotonic() + seconds
        next_at = time.monotonic() + self.rng.expovariate(1 / self.mean_seconds)
        while time.monotonic() < end:
            workers = self._workers()
            now = time.monotonic()
            for pid, until in list(self._frozen.items()):
                if now >= until:
                    _signal(pid, signal.SIGCONT)
                    del self._frozen[pid]
            able = [w for w in workers.values() if w["ready"] and w["pid"] not in self._frozen]
            self.alive.append((now, len(able)))
            if now >= next_at:
                next_at = now + self.rng.expovariate(1 / self.mean_seconds)
                members = [w["pid"] for w in able if w["member"]]
                if len(members) > 1:
                    self._happen(self.rng.choice(FAULTS), self.rng.choice(members))
            time.sleep(POLL_SECONDS)

    def _happen(self, fault: str, pid: int) -> None:
        self.happened.append((time.monotonic(), fault))
        if fault == "kill":
            _signal(pid, signal.SIGKILL)
        elif fault in ("freeze", "stop"):
            _signal(pid, signal.SIGSTOP)
            self._frozen[pid] = time.monotonic() + (FREEZE_SECONDS if fault == "freeze" else 1e9)
        elif fault == "slow":
            for _ in range(SLOW_PULSES):
                _signal(pid, signal.SIGSTOP)
                time.sleep(PULSE_SECONDS)
                _signal(pid, signal.SIGCONT)
                time.sleep(PULSE_SECONDS)
        else:  # a node goes and another one comes
            gone = self.rng.randrange(len(self.names))
            self.names[gone] = f"{self.names[gone].split('-')[0]}-{len(self.happened)}"
            write_nodes(self.job.nodes_file, self.names, **self.job.settings)

    def _workers(self) -> dict[str, dict[str, Any]]:
        if not self._url:
            found = re.search(r"status: (\S+)", self.job.console)
            self._url = found[1] if found else ""
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:  # noqa: S310 - our own
                workers: dict[str, dict[str, Any]] = json.load(answer)["workers"]
                return workers
        except (OSError, ValueError):
            return {}

    def kept_ratio(self, began: float) -> tuple[float, float]:
        """Goodput kept since `began`, and samples per second of one worker before that."""
        steps = sorted({line[1]: line[0] for line in reversed(self.job.trace())}.values())
        calm = [at for at in steps if began - CALM_SECONDS / 2 <= at < began]
        batch_size = self.job.script["batch_size"]
        num_workers = self.alive[0][1]
        speed = batch_size * (len(calm) - 1) / (calm[-1] - calm[0]) / num_workers
        possible = sum(
            (later - at) * count * speed
            for (at, count), (later, _) in zip(self.alive, self.alive[1:], strict=False)
        )
        done = batch_size * len([at for at in steps if began <= at < self.alive[-1][0]])
        return done / possible, speed


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _start(folder: Path, names: list[str]) -> FaultJob:
    settings = {"max_restarts": 100, "emulate": {"seconds_per_sample": SECONDS_PER_SAMPLE}}
    return FaultJob(
        folder,
        names,
        settings=settings,
        epochs=10**6,
        batch_size=64,
        num_samples=4096,
        step_seconds=0.0,
    )


def main() -> int:
    """Run a job under chaos; exit code 1 if it keeps less than what was asked for."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0, help="of chaos")
    parser.add_argument("--mean-seconds", type=float, default=20.0, help="between two faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-least", type=float, default=0.0, help="ratio of goodput to keep")
    matrix.add_options(parser)
    options = parser.parse_args()
    if options.matrix:
        return matrix.run(options)
    with tempfile.TemporaryDirectory(prefix="hetero-hvd-chaos-") as folder:
        names = list(NODE_NAMES[: options.workers])
        job = _start(Path(folder), names)
        chaos = Chaos(
            job=job,
            mean_seconds=options.mean_seconds,
            names=names,
            rng=random.Random(options.seed),  # noqa: S311 - to be repeated, not to be secret
        )
        try:
            job.wait_for(f"{options.workers} workers train together", 120)
            time.sleep(CALM_SECONDS)
            began = time.monotonic()
            chaos.run(options.seconds)
            ratio, speed = chaos.kept_ratio(began)
        finally:
            job.close()
    faults = ", ".join(f"{at - began:.0f} s {name}" for at, name in chaos.happened)
    sys.stdout.write(f"{len(chaos.happened)} faults: {faults}\n")
    sys.stdout.write(f"one worker alone: {speed:.0f} samples/s; goodput kept: {ratio:.3f}\n")
    return 0 if ratio >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
