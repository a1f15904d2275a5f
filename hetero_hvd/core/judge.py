"""The one judgement of a run: keeps what `core.verdicts` judges, while the run goes on.

The terminal, the page, the summary and the records show what comes out of here; nobody else judges.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from hetero_hvd.core.verdicts import Episode, judge, mean_row, straggler_cost_seconds
from hetero_hvd.messages import (
    Event,
    Finding,
    StepsTimed,
    StepTiming,
    StragglerReported,
    WorkerId,
    WorkersJoined,
)

WINDOW_EXCHANGES = 20
"""The newest exchanges, at most so many, are judged."""

SAME_SHARE_RATIO = 0.1
"""Exchanges at shares that differ by more from today's tell of another plan."""

LOOK_EXCHANGES = 5
"""Between two looks for news; a change counts when two looks in a row see it."""

MAX_EPISODES = 20

Table = dict[WorkerId, StepTiming]


class Judge:
    """A fold over a run's events; deterministic. Cost of an event: O(workers).

    Attributes:
        step: Last step heard of; -1 before the first.
    """

    def __init__(self) -> None:
        self.step = -1
        self._members: tuple[WorkerId, ...] = ()
        self._rendezvous_id = self._global_batch_size = 0
        self._varies = False
        self._is_first = True
        self._tables: deque[Table] = deque(maxlen=WINDOW_EXCHANGES)
        self._episodes: deque[Episode] = deque(maxlen=MAX_EPISODES)
        self._num_exchanges = 0
        self._next_look = LOOK_EXCHANGES
        self._has_report = False
        self._told: dict[str, object] = {}
        self._seen: dict[str, object] = {}

    def observe(self, event: Event) -> None:
        """Take in an event; those that tell nothing about speed are ignored."""
        match event:
            case WorkersJoined():
                self._joined(event)
            case StepsTimed() if event.rendezvous_id == self._rendezvous_id:
                self._timed(event)
            case StragglerReported():
                self._reported(event)

    def findings(self) -> tuple[Finding, ...]:
        """The judgement as it stands: stragglers first, newest first. Cost: O(window x workers)."""
        return tuple(judge(self._means(), tuple(reversed(self._episodes))))

    def news(self) -> tuple[Finding, ...]:
        """What has changed since the last call: stragglers at once, all else when it has lasted.

        To be called after each exchange; most calls cost nothing.
        """
        is_due = self._num_exchanges >= self._next_look
        if not (is_due or self._has_report):
            return ()
        self._has_report = False
        new = []
        for found in self.findings():
            topic, gist = _topic(found), _gist(found)
            lasts = found.kind == "straggler" or (is_due and self._seen.get(topic) == gist)
            if topic == "memory" and not found.next_step and topic not in self._told:
                continue  # that there is room is no news
            if found.is_complete and lasts and self._told.get(topic) != gist:
                self._told[topic] = gist
                new.append(found)
            if is_due:
                self._seen[topic] = gist
        if is_due:
            self._next_look = self._num_exchanges + LOOK_EXCHANGES
        return tuple(new)

    def _joined(self, event: WorkersJoined) -> None:
        self._members, self._rendezvous_id = event.workers, event.rendezvous_id
        self._global_batch_size, self._varies = event.global_batch_size, event.wait_free
        self._is_first = True
        self._tables.clear()
        for episode in self._episodes:
            if episode.until_step is None and episode.worker not in event.workers:
                episode.until_step = event.applied_steps

    def _timed(self, event: StepsTimed) -> None:
        """Keep the table; the first one of a membership contains its start and is left out."""
        is_first, self._is_first = self._is_first, False
        before, self.step = self.step, event.step
        if is_first or len(event.timings) != len(self._members):
            return
        pairs = zip(self._members, event.timings, strict=True)
        table = {worker: row for worker, row in pairs if row.num_steps > 0}
        if not table:
            return
        num_samples = sum(row.local_batch_size for row in table.values())
        if self._tables and num_samples < self._global_batch_size and not self._varies:
            return  # the smaller batch at the end of an epoch tells nothing about the others
        self._num_exchanges += 1
        if self._tables and not (self._varies or _has_same_shares(self._tables[-1], table)):
            self._tables.clear()
        self._tables.append(table)
        for episode in self._episodes:
            if episode.until_step is None:
                _charge(episode, table, num_steps=event.step - before)

    def _reported(self, event: StragglerReported) -> None:
        self._has_report = True
        now = [e for e in self._episodes if e.worker == event.worker and e.until_step is None]
        since = event.since_step if event.since_step >= 0 else event.step
        if not event.is_slow or not math.isfinite(event.speed_ratio):
            for episode in now:
                episode.until_step = since
            return
        cause = event.cause or "unknown"
        if now:
            now[0].speed_ratio, now[0].cause = event.speed_ratio, cause
            return
        episode = Episode(
            worker=event.worker, since_step=since, speed_ratio=event.speed_ratio, cause=cause
        )
        self._episodes.append(episode)
        if self._tables:
            _charge(episode, self._tables[-1], num_steps=event.step - since + 1)

    def _means(self) -> Table:
        if not self._tables:
            return {}
        workers = self._tables[-1]
        rows: dict[WorkerId, Sequence[StepTiming]] = {
            worker: [table[worker] for table in self._tables if worker in table]
            for worker in workers
        }
        return {worker: mean_row(found) for worker, found in rows.items()}


def _charge(episode: Episode, table: Table, *, num_steps: int) -> None:
    cost = straggler_cost_seconds(table, episode.worker, episode.speed_ratio)
    episode.cost_seconds_per_step = cost
    if math.isfinite(cost):
        episode.cost_seconds += cost * num_steps


def _has_same_shares(before: Table, now: Table) -> bool:
    """Whether two tables were measured under about the same plan."""
    if before.keys() != now.keys():
        return False
    sizes = [(before[worker].local_batch_size, now[worker].local_batch_size) for worker in now]
    return all(abs(a - b) <= SAME_SHARE_RATIO * max(a, b, 1) for a, b in sizes)


def _topic(found: Finding) -> str:
    """What a finding replaces an earlier one of."""
    if found.kind == "straggler":
        return f"straggler {found.worker} {found.evidence['since_step']:.0f}"
    return found.kind if found.kind in ("imbalance", "memory") else "bound"


def _gist(found: Finding) -> object:
    """What makes a finding another one; its numbers do not."""
    if found.kind == "straggler":  # what it costs comes and goes with the others' noise
        return found.cause, found.is_past
    return found.kind, found.is_complete, found.is_problem, bool(found.next_step)
