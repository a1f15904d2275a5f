"""What our own work around each step costs: each call is timed where training makes it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

import msgspec

from benchmarks.local_workers import result_of
from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table

BATCHES = (2560, 256)
"""Steps about as long as in the comparison under CPU quotas, and much shorter ones."""

STEPS, GOAL = 250, 0.01


class OwnWork(msgspec.Struct):
    """What was measured of a training.

    Attributes:
        step_seconds: Of each step, from batch to batch.
        parts: Name of a part of our own work to the processor seconds that the training thread took
            for it in each step.
        thread_seconds: Processor seconds of all our other threads in a step, on average.
    """

    step_seconds: list[float]
    parts: dict[str, list[float]]
    thread_seconds: float


def profile(effort: Effort, say: Say) -> Iterator[Table]:
    """Time all our own work within two trainings."""
    table = Table(
        title="What our own work in a step costs",
        text="Digits CNN on two workers with one thread each, rank 0, which also leads and records "
        "the run. Every call of ours beside passes, reduction and optimizer is timed within the "
        "training, where the step before has emptied the caches: processor time, the median step "
        "and the mean of all. `profile`: phases, operations, throttling, the search for changes; "
        "the loader takes the rows of a tensor; `other threads` lead, plan and record.",
        columns=("batch", "step", "part", "median", "mean", "mean / step"),
    )
    for batch in BATCHES:
        say(f"batch {batch}: {STEPS * effort.repeats} steps")
        job = {"batch_size": batch, "num_steps": STEPS * effort.repeats}
        found = result_of("benchmarks.workloads.profile", job, OwnWork)
        step = fmean(found.step_seconds)
        costs = [(name, median(all_), fmean(all_)) for name, all_ in found.parts.items()]
        costs.append(("other threads", found.thread_seconds, found.thread_seconds))
        whole = "all", sum(cost[1] for cost in costs), sum(cost[2] for cost in costs)
        for name, typical, mean in (*costs, whole):
            table.rows.append(
                (
                    f"{batch}",
                    f"{step * 1e3:.1f} ms",
                    name,
                    f"{typical * 1e6:.0f} microseconds",
                    f"{mean * 1e6:.0f} microseconds",
                    f"{mean / step:.2%}",
                )
            )
        ratio = whole[2] / step
        table.numbers.append(
            Number(
                quantity=f"our own work, part of a step of {step * 1e3:.0f} ms",
                goal="<= 1 %",
                found=f"{ratio:.2%}",
                is_reached=ratio <= GOAL,
            )
        )
    yield table
