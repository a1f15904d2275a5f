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
from hetero_hvd.bench.tables import Effort, Say, Table, spread
from hetero_hvd.probes.timing import STEP_PHASES, Phase, PhaseClock

BATCH, BLOCK_STEPS, GOAL = 256, 10, 0.01
WALL, CPU = 0, 1


def profile(effort: Effort, say: Say) -> Iterator[Table]:
    """Alternate blocks of steps with and without every measurement, in the same processes."""
    num_rounds = 30 * effort.repeats
    say(f"{num_rounds} pairs of {BLOCK_STEPS} steps")
    pairs = _measure(num_rounds)
    step = min(off[WALL] for _, off in pairs)  # a busy machine must not flatter the ratio
    direct = call_seconds()
    costs = {
        "CPU time of the training thread": [on[CPU] - off[CPU] for on, off in pairs],
        "wall time": [on[WALL] - off[WALL] for on, off in pairs],
    }
    ratio = direct / step
    alone = "all its calls of a step, alone in a loop"
    rows: list[Sequence[str]] = [(alone, f"{direct * 1e6:+.0f}", "", f"{ratio:+.2%}")]
    for name, values in costs.items():
        middle = sorted(values)[len(values) // 4 : -len(values) // 4]
        cost = f"{median(values) * 1e6:+.0f}"
        half = spread([v * 1e6 for v in middle], "{:+.0f}")
        rows.append((name, cost, half, f"{median(values) / step:+.2%}"))
    yield Table(
        title="What the profile costs",
        text=f"Digits CNN, batch {BATCH} on two workers with one thread each, {step * 1e3:.1f} ms "
        f"a step in the fastest block; {len(pairs)} pairs of blocks of {BLOCK_STEPS} steps, with "
        "all measurements and with none (phases, operations, throttling), in the same processes. "
        "Differences within a pair hold what else the machine did and how long the thread polled "
        "for the other worker; the loop holds neither.",
        columns=("cost in a step", "median, microseconds", "middle half", "part of the step"),
        rows=rows,
        numbers=[
            Number(
                quantity=f"profile, part of a step of {step * 1e3:.0f} ms",
                goal="< 1 %",
                found=f"{ratio:+.2%}",
                is_reached=ratio < GOAL,
            )
        ],
    )


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


def _measure(num_rounds: int) -> list[tuple[list[float], list[float]]]:
    """Pairs of (wall, CPU) seconds per step, with and without measurements."""
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
        found = json.loads((folder / "seconds.json").read_text())
        return list(zip(found["on"], found["off"], strict=False))
