"""A recorded run in the order of time: by its exchanges, or a long one by its intervals."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from hetero_hvd.core.step_table import Observed, StepTable, with_tables
from hetero_hvd.errors import UserError
from hetero_hvd.messages import StepsTimed, StepTiming, WorkerId, WorkersJoined
from hetero_hvd.run.records.parts import run_timings, size_bytes
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.records.rollup import PHASES

MAX_RAW_BYTES = 8 * 2**20
"""Of timings that are read one by one; of a run with more of them the oldest may be gone, too."""


def observed(folder: Path, record: Record) -> Iterator[tuple[float, Observed]]:
    """What happened, with a table of each exchange, or where there are very many of each interval.

    Args:
        folder: Of the run.
        record: What was written of it.

    Raises:
        JobError: There are no timings, or a file is damaged.
    """
    if size_bytes(folder) > MAX_RAW_BYTES:
        found: Iterable[tuple[float, Observed]] = record.events
        yield from heapq.merge(found, tables_of(record.rollups), key=itemgetter(0))
        return
    # A membership is in both; the one with the timings comes with what follows from it.
    events = (told for told in record.events if not isinstance(told[1], WorkersJoined))
    yield from with_tables(heapq.merge(events, run_timings(folder), key=itemgetter(0)))


def tables_of(rollups: Sequence[dict[str, Any]]) -> Iterator[tuple[float, StepTable]]:
    """One for each interval, as if all of it were one exchange."""
    for at_unix_seconds, found in groupby(rollups, key=itemgetter("at_unix_seconds")):
        rows = [row for row in found if row["num_steps"]]
        try:
            workers = tuple(WorkerId.parse(row["worker"]) for row in rows)
        except UserError:  # of another version
            continue
        if not rows:
            continue
        timings = tuple(map(_timing, rows))
        newest = max(rows, key=itemgetter("last_step"))
        event = StepsTimed(
            rendezvous_id=0,
            step=newest["last_step"],
            epoch=newest["epoch"] or 0,
            loss=_number(newest["loss"]),
            timings=timings,
            exchange_seconds=math.nan,
        )
        joined = WorkersJoined(
            rendezvous_id=0,
            workers=workers,
            applied_steps=0,
            global_batch_size=sum(timing.local_batch_size for timing in timings),
            capacities=(-1,) * len(workers),
            prefetch_steps=0,
        )
        yield at_unix_seconds, StepTable(event=event, joined=joined, rows=timings, is_first=False)


def _timing(row: dict[str, Any]) -> StepTiming:
    steps = row["num_steps"]
    columns: dict[str, Any] = {name: _number(row[name]) / steps for name in PHASES}
    return StepTiming(
        num_steps=int(steps),
        local_batch_size=round(row["samples"] / steps),
        memory_bytes=_number(row["memory_bytes"]),
        **columns,
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
