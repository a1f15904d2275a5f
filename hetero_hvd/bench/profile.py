"""What measuring every step costs: the same training with the profile reduced to nothing."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from hetero_hvd.bench.numbers import Number
from hetero_hvd.bench.peers import execute
from hetero_hvd.bench.tables import Effort, Say, Table
from hetero_hvd.probes.timing import STEP_PHASES, Phase, PhaseClock

BATCH, BLOCK_STEPS, GOAL = 256, 10, 0.01
WALL, CPU = 0, 1


def profile(effort: Effort, say: Say) -> Iterator[Table]:
    """Alternate blocks of steps with and without every measurement, in the same processes."""
    num_rounds = 30 * effort.repeats
    say(f"{num_rounds} pairs of {BLOCK_STEPS} steps")
    found = _measure(num_rounds)
    step = _tenth(found["off"], WALL)  # a busy machine must not flatter the ratio
    direct = call_seconds()
    undisturbed = _tenth(found["on"], CPU) - _tenth(found["off"], CPU)
    half = _middle(found["on"], CPU) - _middle(found["off"], CPU)
    costs = {
        "all its calls of a step, alone in a loop": direct,
        "CPU time of the training thread, the tenth of the steps that was disturbed least": (
            undisturbed
        ),
        "the same, median of the steps": half,
    }
    ratio = max(direct, undisturbed) / step
    yield Table(
        title="What the profile costs",
        text=f"Digits CNN, batch {BATCH} on two workers with one thread each, {step * 1e3:.1f} ms "
        f"a step where undisturbed; {len(found['on'])} steps with all measurements and "
        f"{len(found['off'])} with none (phases, operations, throttling), in turn in the same "
        "processes, without the exchange of timings, which is another row. CPU time also holds "
        "how long the thread polled for the other worker.",
        columns=("cost in a step", "microseconds", "part of the step"),
        rows=[(name, f"{cost * 1e6:+.0f}", f"{cost / step:+.2%}") for name, cost in costs.items()],
        numbers=[
            Number(
                quantity=f"profile, part of a step of {step * 1e3:.0f} ms",
                goal="< 1 %",
                found=f"{ratio:+.2%}",
                is_reached=ratio < GOAL,
            )
        ],
    )


def _tenth(steps: Sequence[Sequence[float]], column: int) -> float:
    """The value that a tenth of the steps is below."""
    return sorted(step[column] for step in steps)[len(steps) // 10]


def _middle(steps: Sequence[Sequence[float]], column: int) -> float:
    return median(step[column] for step in steps)


def call_seconds(num_steps: int = 3000) -> float:
    """CPU seconds of a step's measurements: seven phases, four operations, the profile's own."""
    from hetero_hvd.worker.exchange import TimingWindow  # noqa: PLC0415 - needs torch
    from hetero_hvd.worker.operations import OperationLog  # noqa: PLC0415
    from hetero_hvd.worker.profile import StepProfile  # noqa: PLC0415

    clock, log, window, rest = (
        PhaseClock(),
        OperationLog(),
        TimingWindow(),
        StepProfile(PhaseClock()),
    )
    seat: Any = SimpleNamespace(
        collective=SimpleNamespace(operations=log, rank=0, size=2), client=None
    )
    phases: tuple[Phase, ...] = (*STEP_PHASES, "optimizer")
    began = time.thread_time()
    for step in range(num_steps):
        for name in phases:
            with clock.phase(name):
                pass
        for handle in range(4):
            log.glance()
            log.launched(handle, "allreduce", "gloo", 2**20)
        for handle in range(4):
            log.done(handle, 2**20)
        window.add(8, clock.take() | {"step": 0.1} | rest.step_applied(seat, step))
    return (time.thread_time() - began) / num_steps


def _measure(num_rounds: int) -> dict[str, list[list[float]]]:
    """Wall and CPU seconds of each step, `on` with and `off` without measurements."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = {"batch_size": BATCH, "num_rounds": num_rounds, "block_steps": BLOCK_STEPS}
        (folder / "job.json").write_text(json.dumps(job))
        launch = [str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", "2"]
        launch += ["-H", "localhost:2", "--network-interfaces", "lo", sys.executable]
        words = ["-m", "hetero_hvd.bench.workload_profile", str(folder)]
        variables = os.environ | {
            "OMP_NUM_THREADS": "1",
            "HETERO_HVD_BALANCE": '{"balance": false}',
        }
        execute([*launch, *words], folder, variables, 400.0)
        found: dict[str, list[list[float]]] = json.loads((folder / "seconds.json").read_text())
        return found
