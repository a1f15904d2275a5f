"""Timings of many steps as one row per worker and interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hetero_hvd import messages
from hetero_hvd.core.step_table import StepTable
from hetero_hvd.messages import StepTiming, WorkerId

INTERVAL_SECONDS = 10.0
WHOLE_STEP = "step_seconds"
PHASES = (
    *(f"{phase}_seconds" for phase in messages.PHASES),
    WHOLE_STEP,
    "other_seconds",
    "overlapped_comm_seconds",
)
COLUMNS = (
    "at_unix_seconds",
    "worker",
    "last_step",
    "num_steps",
    "samples",
    "memory_bytes",
    *PHASES,
    "epoch",
    "loss",
)


class Rollups:
    """Sums of the newest interval; the first exchange of a membership contains its start: left out.

    Intervals are counted from the first exchange: whoever goes on in a folder, some seconds later
    or by another clock, replaces no row of who has written there before.

    A phase that was not measured in one of the rows is NaN, that is NULL, for the whole interval:
    a part would be taken for the whole.
    """

    def __init__(self) -> None:
        self._first_seconds = math.nan
        self._start_seconds = -math.inf
        self._rows: dict[WorkerId, dict[str, Any]] = {}

    def timed(self, at_unix_seconds: float, table: StepTable) -> Iterator[tuple[Any, ...]]:
        """Rows to write: each replaces the one of the same interval and worker.

        Args:
            at_unix_seconds: When it was heard.
            table: What was measured; phases in the rows are sums of seconds over `num_steps`.
        """
        if table.is_first:
            return
        if math.isnan(self._first_seconds):
            self._first_seconds = at_unix_seconds
        number = (at_unix_seconds - self._first_seconds) // INTERVAL_SECONDS
        start_seconds = self._first_seconds + number * INTERVAL_SECONDS
        start_seconds = max(start_seconds, self._start_seconds)  # a clock that was set back
        if start_seconds != self._start_seconds:
            self._start_seconds = start_seconds
            self._rows = {}
        for worker, timing in table.measured.items():
            row = self._rows.setdefault(
                worker, dict.fromkeys(COLUMNS, 0.0) | {"memory_bytes": math.nan}
            )
            _add(row, timing, table.event.loss)
            row |= {"at_unix_seconds": start_seconds, "worker": str(worker)}
            row["last_step"] = table.step
            row["epoch"] = table.event.epoch
            yield tuple(row.values())


def _add(row: dict[str, Any], timing: StepTiming, loss: float) -> None:
    before = row["num_steps"]
    row["num_steps"] += timing.num_steps
    row["loss"] = (row["loss"] * before + loss * timing.num_steps) / row["num_steps"]
    row["samples"] += timing.num_steps * timing.local_batch_size
    if not row["memory_bytes"] >= timing.memory_bytes:  # NaN gives way to what is measured
        row["memory_bytes"] = timing.memory_bytes
    for phase in PHASES:
        row[phase] += timing.num_steps * getattr(timing, phase)
