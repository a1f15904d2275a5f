"""The table of a step: what one exchange of timings says of all workers, worked out once.

Whoever shows, records or judges the speed of a run reads this table and not the rows as they come:
which exchanges count, what a step took and how many samples it had is decided here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

import msgspec
from msgspec.structs import astuple

from hetero_hvd.messages import Event, StepsTimed, StepTiming, WorkerId, WorkersJoined

WINDOW_EXCHANGES = 20
"""Exchanges of which a worker's usual step is taken."""

SIMILAR_SHARE_RATIO = 0.25
"""Steps whose shares differ by more are not like each other."""


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """The timings of all workers since the exchange before.

    Attributes:
        event: As it was told.
        joined: The membership.
        rows: One for each member in rank order; with the steps that a worker has left out of its
            own, as it saw itself change after them: they were as they should be.
        is_first: Whether it is the first of its membership, and so contains the start.
    """

    event: StepsTimed
    joined: WorkersJoined
    rows: tuple[StepTiming, ...]
    is_first: bool

    @property
    def step(self) -> int:
        """Index of its last step."""
        return self.event.step

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Members in rank order."""
        return self.joined.workers

    @property
    def follows_plan(self) -> bool:
        """Whether the shares are those of a plan."""
        return self.joined.follows_plan

    @property
    def is_whole(self) -> bool:
        """Whether it has all samples of the global batch: an epoch's last step may have fewer."""
        return not self.follows_plan or self.samples_per_step >= self.joined.global_batch_size

    @cached_property
    def measured(self) -> dict[WorkerId, StepTiming]:
        """The rows of those who have taken part in a step."""
        pairs = zip(self.workers, self.rows, strict=True)
        return {worker: row for worker, row in pairs if row.num_steps > 0}

    @cached_property
    def num_steps(self) -> int:
        """Steps in it."""
        return max((row.num_steps for row in self.measured.values()), default=0)

    @cached_property
    def samples_per_step(self) -> int:
        """Of all workers."""
        return sum(row.local_batch_size for row in self.measured.values())

    @cached_property
    def step_seconds(self) -> float:
        """Duration of a step: that of the worker for which it took longest; NaN: not measured."""
        return longest_step(self.measured.values())

    @cached_property
    def samples_per_second(self) -> float:
        """Throughput of the job; NaN: not measured."""
        return self.samples_per_step / self.step_seconds

    @cached_property
    def _busy(self) -> list[tuple[int, float]]:
        """Share and own time of those that have a part; empty where one was not measured."""
        found = [(row.local_batch_size, row.busy_seconds) for row in self.measured.values()]
        found = [(size, seconds) for size, seconds in found if size]
        return found if all(seconds > 0 for _, seconds in found) else []

    @cached_property
    def ideal_samples_per_second(self) -> float:
        """What the workers could do under the same load if nobody waited; NaN: not measured."""
        return sum(size / seconds for size, seconds in self._busy) or math.nan

    @cached_property
    def imbalance_ratio(self) -> float:
        """(largest - smallest) / mean of the workers' own times in a step; NaN: not measured."""
        times = [seconds for _, seconds in self._busy]
        return (max(times) - min(times)) * len(times) / sum(times) if times else math.nan

    @cached_property
    def _waits(self) -> list[float]:
        waits = [row.comm_wait_seconds for row in self.measured.values()]
        return [wait for wait in waits if math.isfinite(wait)]

    @cached_property
    def lateness_seconds(self) -> dict[WorkerId, float]:
        """How much later than the first one each was ready to reduce, per step; NaN: not measured.

        `lateness_i = max wait - own wait`: a reduction ends for all at about the same instant, so
        who waited longest was ready first, and no clocks are compared.
        """
        longest = max(self._waits, default=math.nan)
        return {worker: longest - row.comm_wait_seconds for worker, row in self.measured.items()}

    @cached_property
    def exposed_comm_seconds(self) -> float:
        """Communication that nobody could hide, per step; NaN if no wait was measured.

        It is what even the last worker to be ready waits; what others wait beyond is its lateness.
        """
        return min(self._waits, default=math.nan)


class StepTables:
    """Makes the table of each exchange: a fold over a run's events."""

    def __init__(self) -> None:
        self._joined: WorkersJoined | None = None
        self._last_step: int | None = None
        self._recent: deque[dict[WorkerId, StepTiming]] = deque(maxlen=WINDOW_EXCHANGES)

    def observe(self, event: Event) -> StepTable | None:
        """Take in an event; gives a table if it is one of the membership under way."""
        if isinstance(event, WorkersJoined):
            self._joined = event
            self._last_step = None
            self._recent.clear()
        joined = self._joined
        if joined is None or not isinstance(event, StepsTimed):
            return None
        if event.rendezvous_id != joined.rendezvous_id or len(event.timings) != len(joined.workers):
            return None
        last_step, self._last_step = self._last_step, event.step
        rows = event.timings
        if last_step is not None and not joined.shares_vary:
            rows = self._completed(joined.workers, rows, event.step - last_step)
        table = StepTable(event=event, joined=joined, rows=rows, is_first=last_step is None)
        if not table.is_first and table.measured:
            self._recent.append(table.measured)
        return table

    def _completed(
        self, workers: Sequence[WorkerId], rows: Sequence[StepTiming], num_steps: int
    ) -> tuple[StepTiming, ...]:
        """Rows with the steps left out: each like the one of middle duration of the last rows."""
        return tuple(
            self._with_usual(worker, row, num_steps - row.num_steps)
            if 0 < row.num_steps < num_steps
            else row
            for worker, row in zip(workers, rows, strict=True)
        )

    def _with_usual(self, worker: WorkerId, row: StepTiming, num_missing: int) -> StepTiming:
        size = row.local_batch_size
        before = [table[worker] for table in self._recent if worker in table]
        before = [kept for kept in before if is_similar(kept.local_batch_size, size)]
        if not before:
            return row
        before.sort(key=lambda kept: kept.step_seconds)
        usual = msgspec.structs.replace(before[len(before) // 2], num_steps=num_missing)
        return mean_row([usual, row])


Observed = Event | StepTable
"""What happens in a run, and what follows from it."""


def with_tables(
    events: Iterable[tuple[float, Event]], tables: StepTables | None = None
) -> Iterator[tuple[float, Observed]]:
    """The events of a recorded run, each exchange followed by its table.

    Args:
        events: With their times.
        tables: What has seen the events before these; None: there are none.
    """
    tables = tables or StepTables()
    for at_unix_seconds, event in events:
        yield at_unix_seconds, event
        if (table := tables.observe(event)) is not None:
            yield at_unix_seconds, table


def is_similar(size: int, other: int, most_ratio: float = SIMILAR_SHARE_RATIO) -> bool:
    """Whether two shares differ by at most this part of the larger one."""
    return abs(size - other) <= most_ratio * max(size, other, 1)


def longest_step(rows: Iterable[StepTiming]) -> float:
    """Mean duration of a step on the worker for which it took longest, in seconds; NaN: unknown."""
    return max((row.step_seconds for row in rows if row.step_seconds > 0), default=math.nan)


def mean_row(rows: Sequence[StepTiming]) -> StepTiming:
    """Mean over all their steps; a phase that was not measured in one of them is NaN."""
    num_steps = [row.num_steps for row in rows]
    steps = sum(num_steps)
    columns = zip(StepTiming.__struct_fields__, zip(*map(astuple, rows), strict=True), strict=True)
    means = {name: sum(map(mul, num_steps, column)) / steps for name, column in columns}
    means |= {"num_steps": steps, "local_batch_size": rows[-1].local_batch_size}
    return StepTiming(**means)
