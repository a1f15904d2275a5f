"""A run's timings as a scenario: its workers' curves, and each step's deviation from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from hetero_hvd.core.balance.step_time import StepTimeEstimator
from hetero_hvd.core.simulation.scenario import Change, Scenario
from hetero_hvd.errors import JobError
from hetero_hvd.messages import WorkerId, WorkersJoined
from hetero_hvd.run.records.parts import run_timings
from hetero_hvd.run.records.timings import read_timings


def read_recording(path: Path) -> Scenario:
    """Fit each worker's curve; what a row deviates from it becomes the noise of that step.

    Raises:
        JobError: The file cannot be read, or holds no timings.
    """
    estimators: dict[WorkerId, StepTimeEstimator] = {}
    rows: list[tuple[int, dict[WorkerId, tuple[int, float]]]] = []
    members: tuple[WorkerId, ...] = ()
    batch = 0
    for _, event in run_timings(path) if path.is_dir() else read_timings(path):
        if isinstance(event, WorkersJoined):
            members, batch = event.workers, event.global_batch_size
            for worker in members:
                estimators.setdefault(worker, StepTimeEstimator())
            continue
        table = {}
        for worker, timing in zip(members, event.timings, strict=False):
            table[worker] = (timing.local_batch_size, timing.busy_seconds)
            if len(rows) > 1:
                estimators[worker].update(
                    timing.local_batch_size, timing.busy_seconds, timing.num_steps
                )
        rows.append((event.step, table))
    workers = [worker for worker, estimator in estimators.items() if estimator.is_ready]
    if not workers:
        raise JobError(f"{path}: holds no timings")
    models = {worker: estimators[worker].model for worker in workers}

    def ratio(worker: WorkerId, size: int, seconds: float) -> float:
        if size == 0 or not math.isfinite(seconds) or seconds <= 0:
            return 1.0
        return seconds / models[worker].step_seconds(size)

    return Scenario(
        curves=tuple(models.values()),
        global_batch_size=batch,
        recorded=tuple(
            tuple(ratio(worker, *table.get(worker, (0, 1.0))) for worker in workers)
            for _, table in rows
        ),
        changes=tuple(_changes(workers, rows)),
    )


def _changes(
    workers: Sequence[WorkerId], rows: Sequence[tuple[int, dict[WorkerId, tuple[int, float]]]]
) -> Iterator[Change]:
    """Losses and joins, in rows of the recording."""
    present = dict.fromkeys(workers, True)
    for index, (_, table) in enumerate(rows):
        for number, worker in enumerate(workers):
            if (worker in table) != present[worker]:
                present[worker] = worker in table
                ratio = 1.0 if present[worker] else math.inf
                yield Change(step=index, worker=number, time_ratio=ratio)
