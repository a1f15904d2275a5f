"""What measuring every step costs: each call of the profile is timed where training makes it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.local_workers import result_of
from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table

BATCHES = (2560, 256)
"""Steps about as long as in the comparison under CPU quotas, and much shorter ones."""

STEPS, GOAL = 250, 0.01


def profile(effort: Effort, say: Say) -> Iterator[Table]:
    """Time all measurements within two trainings."""
    table = Table(
        title="What the profile costs",
        text="Digits CNN on two workers with one thread each. Every call that measures (phases, "
        "operations, throttling, the search for changes) is timed within the training, where the "
        "step before has emptied the caches; medians. Without the exchange of timings, which is "
        "another row. On average: with the looks at the kernel's files, 20 a second at most, and "
        "with whatever interrupted a call.",
        columns=("batch", "step", "profile", "part of the step", "on average"),
    )
    for batch in BATCHES:
        say(f"batch {batch}: {STEPS * effort.repeats} steps")
        found = _measure(batch, STEPS * effort.repeats)
        step, cost = (median(column) for column in zip(*found, strict=True))
        whole, costs = (sum(column) for column in zip(*found, strict=True))
        ratio = cost / step
        table.rows.append(
            (
                f"{batch}",
                f"{step * 1e3:.1f} ms",
                f"{cost * 1e6:.0f} microseconds",
                f"{ratio:.2%}",
                f"{costs / whole:.2%}",
            )
        )
        table.numbers.append(
            Number(
                quantity=f"profile, part of a step of {step * 1e3:.0f} ms",
                goal="< 1 %",
                found=f"{ratio:.2%}",
                is_reached=ratio < GOAL,
            )
        )
    yield table


def _measure(batch_size: int, num_steps: int) -> list[tuple[float, float]]:
    """Seconds of each step, and of those the profile's."""
    job = {"batch_size": batch_size, "num_steps": num_steps}
    return result_of("benchmarks.workloads.profile", job, list[tuple[float, float]])
