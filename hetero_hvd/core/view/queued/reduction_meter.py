"""What a job's reductions take and how many bytes they have: a fold over its events."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

import msgspec

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.messages import CollectivesTimed, WorkersJoined

FEWEST_TABLES, MOST_TABLES = 3, 9
"""Exchanges of which the middle one is told."""


class ReductionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The reductions of the workers that train now, of a whole step.

    They are those of the worker that is the last to be ready: it waits for nobody, so that what it
    sees is what the network takes.

    Attributes:
        nodes: Of each worker, in rank order.
        seconds: In which a reduction was under way, > 0.
        exposed_seconds: Of them those in which nothing was computed beside it.
        busy_seconds: In which that worker computed, > 0.
        num_bytes: That each worker reduced, > 0.
        num_samples: Of all workers, > 0.
    """

    nodes: tuple[str, ...]
    seconds: float
    exposed_seconds: float
    busy_seconds: float
    num_bytes: float
    num_samples: int


class ReductionMeter:
    """Takes in events; see `facts`."""

    def __init__(self) -> None:
        self._rendezvous_id = -1
        self._nodes: tuple[str, ...] = ()
        self._rows: deque[tuple[float, float, float, int]] = deque(maxlen=MOST_TABLES)
        self._counted_step = -1
        self._num_bytes = 0.0

    def observe(self, event: Observed) -> None:
        """An event of the bus."""
        match event:
            case WorkersJoined():
                self._rendezvous_id = event.rendezvous_id
                self._nodes = tuple(worker.node for worker in event.workers)
                self._rows.clear()
                self._counted_step = -1
                self._num_bytes = 0.0
            case CollectivesTimed() if event.rendezvous_id == self._rendezvous_id:
                self._counted(event)
            case StepTable() if not (event.is_first or event.joined.shares_vary):
                self._timed(event)

    def _counted(self, event: CollectivesTimed) -> None:
        num_steps = event.step - self._counted_step
        if self._counted_step >= 0 and num_steps > 0:  # what comes first has a start in it
            reduced = (each.num_bytes for each in event.operations if each.op == "allreduce")
            self._num_bytes = sum(reduced) / num_steps
        self._counted_step = event.step

    def _timed(self, table: StepTable) -> None:
        rows = [row for row in table.measured.values() if math.isfinite(row.comm_wait_seconds)]
        if not rows or len(rows) < len(self._nodes) or not table.is_whole:
            return
        last = min(rows, key=lambda row: row.comm_wait_seconds)
        if not math.isnan(last.staleness_steps):
            return  # its reductions go on while others are behind
        exposed, busy = last.comm_wait_seconds, last.busy_seconds
        seconds = exposed + last.overlapped_comm_seconds
        if 0 < seconds < math.inf and 0 < busy < math.inf:
            self._rows.append((seconds, exposed, busy, table.samples_per_step))

    @property
    def facts(self) -> ReductionFacts | None:
        """As they were lately; None: too little was measured since the workers have changed."""
        if len(self._rows) < FEWEST_TABLES or not self._num_bytes:
            return None
        seconds, exposed, busy, samples = zip(*self._rows, strict=True)
        return ReductionFacts(
            nodes=self._nodes,
            seconds=median(seconds),
            exposed_seconds=median(exposed),
            busy_seconds=median(busy),
            num_bytes=self._num_bytes,
            num_samples=samples[-1],
        )
