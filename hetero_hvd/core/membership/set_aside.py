"""When members without samples are set aside, as the others wait for them in each reduction.

The balancer takes all samples from a worker that would hold up the others, but it remains a member,
and takes part in every reduction. Whether the others are faster without it no model knows, as they
may wait for each other or for the network as well: so it is tried, and measured before and after.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from hetero_hvd.core.diagnosis.findings import BOUND_RATIO
from hetero_hvd.core.step_table import StepTable
from hetero_hvd.messages import SetAsideReported, WorkerId

NUM_EXCHANGES = 8
"""Exchanges with the same idle members until the others try without them, and until that is judged:
more than those in which the balancer measures an idle worker again (`IdleWorkers.ROWS`)."""

MIN_GAIN_RATIO = 0.1
"""Part of a step that the others must save, so that the members stay away; less is noise."""

MORE_THAN_ANY = 2**31
"""Members: so many must be left where nobody may be left out."""

SetAsideMode = Literal["auto", "always", "never"]
Workers = frozenset[WorkerId]


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Some members are left out, to measure the others without them.

    Attributes:
        workers: Those who are left out.
        idle: They, and members without samples that are kept.
        members: All.
        with_seconds: Median duration of a step with them.
        without_seconds: Durations without them, an exchange each.
    """

    workers: Workers
    idle: Workers
    members: Workers
    with_seconds: float
    without_seconds: list[float] = field(default_factory=list)

    @property
    def rejected(self) -> tuple[Workers, Workers]:
        """Where nothing is to be tried again, if it was in vain."""
        return self.idle, self.members


class SetAsidePolicy:
    """Whom to leave out and whom to take back: a fold over memberships, tables and losses.

    Who is set aside stays so until a member is lost or fewer workers are left than there must be,
    since only then a slower worker is worth more than none. What was tried in vain is not tried
    again with the same members, unless one of the idle ones has meanwhile had samples in
    `NUM_EXCHANGES` exchanges on end. Cost of an event: O(workers).

    Args:
        mode: See `follow`.
        min_np: See `follow`.
        min_idle_seconds: See `follow`.
    """

    def __init__(self, mode: SetAsideMode, min_np: int, min_idle_seconds: float = 0.0) -> None:
        self._min_members = _min_members(mode, min_np)
        self._min_idle_seconds = min_idle_seconds
        self._idle_seconds = 0.0
        self._members: Workers = frozenset()
        self._aside: Workers = frozenset()
        self._trial: _Trial | None = None
        self._tables: deque[StepTable] = deque(maxlen=NUM_EXCHANGES)
        self._rejected: set[tuple[Workers, Workers]] = set()
        self._num_loaded: Counter[WorkerId] = Counter()
        self._step = -1

    @property
    def away(self) -> Workers:
        """All who are left out, for good or on trial."""
        return self._aside | (self._trial.workers if self._trial is not None else frozenset())

    def follow(
        self, mode: SetAsideMode, min_np: int, min_idle_seconds: float = 0.0
    ) -> SetAsideReported | None:
        """The settings are these from now on.

        Args:
            mode: `auto`: at least two members are left, as the state of the training would else be
                in one place only; `always`: one may be; `never`: nobody is left out.
            min_np: Fewest members that the user wants, >= 1.
            min_idle_seconds: So long the same members must have had no samples, >= 0: a start of
                those who come back is worth no shorter time.
        """
        self._min_idle_seconds = min_idle_seconds
        before, self._min_members = self._min_members, _min_members(mode, min_np)
        if self._min_members != before:
            self._rejected.clear()
        if len(self._members - self.away) >= self._min_members:
            return None
        return self.take_back("the settings have changed")

    def joined(self, workers: Iterable[WorkerId]) -> SetAsideReported | None:
        """There is a new membership."""
        before, self._members = self._members, frozenset(workers)
        self._tables.clear()
        trial = self._trial
        lost = before - self._members - self.away
        if lost:
            return self.take_back(f"{_names(lost)} {_is(lost)} gone")
        if trial is None:
            return None
        trial.without_seconds.clear()
        if newcomers := self._members - trial.members:
            self._rejected.add(trial.rejected)  # a worker that has waited for a place may take it
            self._trial = None
            return self._returned(trial.workers, f"{_names(newcomers)} {_is(newcomers)} a member")
        return None

    def lost(self, worker: WorkerId) -> SetAsideReported | None:
        """A worker's process has ended."""
        if worker not in self._members or worker in self.away:
            return None
        return self.take_back(f"{worker} is gone")

    def take_back(self, why: str) -> SetAsideReported | None:
        """All who are left out take part again."""
        workers, self._aside, self._trial = self.away, frozenset(), None
        self._tables.clear()
        return self._returned(workers, why) if workers else None

    def forget(self, workers: Workers) -> None:
        """These are away for another reason, or take part again: they are left out no more."""
        self._aside -= workers

    def timed(self, table: StepTable, *, may_try: bool) -> SetAsideReported | None:
        """Take the next table.

        Args:
            table: Of the newest membership.
            may_try: Whether members may be left out now: all workers that start have joined, and
                those who leave can come back.
        """
        self._step = table.step
        if not counts_in_full(table):
            return None
        self._count_loaded(table)
        if self._trial is not None:
            return self._judge(self._trial, table)
        if self._tables and _idle(self._tables[-1]) != _idle(table):
            self._tables.clear()
        if not self._tables:
            self._idle_seconds = 0.0
        self._tables.append(table)
        self._idle_seconds += table.num_steps * table.step_seconds
        is_due = len(self._tables) == NUM_EXCHANGES and self._idle_seconds >= self._min_idle_seconds
        return self._try() if may_try and is_due else None

    def _count_loaded(self, table: StepTable) -> None:
        for worker, row in table.measured.items():
            self._num_loaded[worker] = (self._num_loaded[worker] + 1) * (row.local_batch_size > 0)
        back = {worker for worker, number in self._num_loaded.items() if number >= NUM_EXCHANGES}
        self._rejected = {tried for tried in self._rejected if not tried[0] & back}

    def _try(self) -> SetAsideReported | None:
        """Leave out who has no samples, if those who have some wait long for reductions."""
        idle = _idle(self._tables[-1])
        num_loaded = len(self._members - idle)
        waiting_ratio = median(map(_waiting_ratio, self._tables))
        if not idle or not num_loaded or waiting_ratio < BOUND_RATIO:
            return None
        cheapest_first = sorted(idle, key=lambda worker: (self._lateness_seconds(worker), worker))
        workers = frozenset(cheapest_first[max(0, self._min_members - num_loaded) :])
        seconds = median(table.step_seconds for table in self._tables)
        trial = _Trial(workers=workers, idle=idle, members=self._members, with_seconds=seconds)
        if not workers or trial.rejected in self._rejected:
            return None
        self._trial = trial
        self._tables.clear()
        have = "has" if len(workers) == 1 else "have"
        words = f"{_names(workers)} {have} no samples, and {waiting_ratio:.0%} of a step is waiting"
        words += f" for reductions: {NUM_EXCHANGES} exchanges are measured without {_them(workers)}"
        return self._report("tried", workers, words, with_seconds=seconds)

    def _judge(self, trial: _Trial, table: StepTable) -> SetAsideReported | None:
        """Compare, once enough is measured without them."""
        if frozenset(table.workers) != trial.members - trial.workers:
            return None  # they have not left yet
        trial.without_seconds.append(table.step_seconds)
        if len(trial.without_seconds) < NUM_EXCHANGES:
            return None
        before, after = trial.with_seconds, median(trial.without_seconds)
        self._trial = None
        took = f"a step takes {after * 1e3:.1f} ms instead of {before * 1e3:.1f}"
        if after > (1 - MIN_GAIN_RATIO) * before:
            self._rejected.add(trial.rejected)
            words = f"without {_them(trial.workers)} {took}"
            return self._returned(trial.workers, words, before, after)
        self._aside |= trial.workers
        words = f"{_others(trial)}: {took}; {_names(trial.workers)} {_is(trial.workers)} set aside"
        words += " until a worker is lost"
        return self._report("set aside", trial.workers, words, before, after)

    def _lateness_seconds(self, worker: WorkerId) -> float:
        """How much later than the first one it was ready to reduce; not measured is the worst."""
        found = [table.lateness_seconds[worker] for table in self._tables]
        return median(math.inf if math.isnan(seconds) else seconds for seconds in found)

    def _returned(
        self,
        workers: Workers,
        why: str,
        with_seconds: float = math.nan,
        without_seconds: float = math.nan,
    ) -> SetAsideReported:
        come = "comes" if len(workers) == 1 else "come"
        words = f"{why}: {_names(workers)} {come} back"
        return self._report("returned", workers, words, with_seconds, without_seconds)

    def _report(
        self,
        what: Literal["tried", "set aside", "returned"],
        workers: Workers,
        words: str,
        with_seconds: float = math.nan,
        without_seconds: float = math.nan,
    ) -> SetAsideReported:
        return SetAsideReported(
            what=what,
            step=self._step,
            workers=tuple(sorted(workers)),
            words=words,
            with_seconds=with_seconds,
            without_seconds=without_seconds,
        )


def _min_members(mode: SetAsideMode, min_np: int) -> int:
    return MORE_THAN_ANY if mode == "never" else max(min_np, 2 if mode == "auto" else 1)


def counts_in_full(table: StepTable) -> bool:
    """Whether it was measured as a whole, by all members, with the whole global batch."""
    is_whole = table.follows_plan and table.is_whole and len(table.measured) == len(table.workers)
    return is_whole and not table.is_first and math.isfinite(table.step_seconds)


def _idle(table: StepTable) -> Workers:
    rows = table.measured.items()
    return frozenset(worker for worker, row in rows if not row.local_batch_size)


def _waiting_ratio(table: StepTable) -> float:
    """Part of a step that everybody with samples waits for reductions; 0: not measured."""
    rows = [row for row in table.measured.values() if row.local_batch_size]
    ratios = [row.comm_wait_seconds / row.step_seconds for row in rows if row.step_seconds > 0]
    is_measured = len(ratios) == len(rows) > 0 and all(map(math.isfinite, ratios))
    return min(ratios) if is_measured else 0.0


def _others(trial: _Trial) -> str:
    """Who is left."""
    left = trial.members - trial.workers
    return f"{_names(left)} alone" if len(left) == 1 else f"{len(left)} workers by themselves"


def _names(workers: Workers) -> str:
    return ", ".join(map(str, sorted(workers)))


def _is(workers: Workers) -> str:
    return "is" if len(workers) == 1 else "are"


def _them(workers: Workers) -> str:
    return "it" if len(workers) == 1 else "them"
