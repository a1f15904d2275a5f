"""The one judgement of a run: keeps what `core.diagnosis.findings` judges, while the run goes on.

The terminal, the page, the summary and the records show what comes out of here; nobody else judges.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from hetero_hvd.core.diagnosis.data_sources import SourceWaits
from hetero_hvd.core.diagnosis.episodes import MAX_CHARGED, Episodes
from hetero_hvd.core.diagnosis.findings import (
    Episode,
    bound,
    diagnose,
    straggler_cost_seconds,
)
from hetero_hvd.core.diagnosis.spells import Recurring, Spells
from hetero_hvd.core.diagnosis.stall import stall_in_words
from hetero_hvd.core.step_table import (
    SIMILAR_SHARE_RATIO,
    WINDOW_EXCHANGES,
    Observed,
    StepTable,
    is_similar,
    longest_step,
    mean_row,
)
from hetero_hvd.messages import (
    Finding,
    RunEnded,
    RunStarted,
    Sharing,
    SourcesRead,
    StallReported,
    StepTiming,
    StragglerReported,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)

RECENT_EXCHANGES = 5
"""A change that so many exchanges in a row show is told; what was before it is judged no more."""

SUDDEN_LOOKS, LASTING_LOOKS = (2, 4), 2 * RECENT_EXCHANGES
"""How often in a row the mean of two exchanges, and that of all that are judged, must show a
change: one that is there all the time is seen soon, one that varies in the long run. What comes in
spells is left to `core.diagnosis.spells`."""

SAME_SHARE_RATIO = 0.1
"""Exchanges at shares that differ by more from today's tell of another plan; if they are not even
similar, they do not tell what binds the run."""

Rows = dict[WorkerId, StepTiming]


class _Table(NamedTuple):
    """What was measured in an exchange, and its last step."""

    step: int
    rows: Rows


class Diagnoser:
    """A fold over a run's events; deterministic. Cost of an event: O(workers).

    Attributes:
        step: Last step heard of; -1 before the first.
    """

    def __init__(self) -> None:
        self.step = -1
        self._sharing: Sharing = "planned"
        self._undivided = 1
        self._stall: StallReported | None = None
        self._sources = SourceWaits()
        self._tables: deque[_Table] = deque(maxlen=WINDOW_EXCHANGES)  # of the membership
        self._num_judged = self._num_of_plan = 0
        self._means_of: dict[int, Rows] = {}
        self._spells = Spells(WINDOW_EXCHANGES)
        self._episodes = Episodes()
        self._num_exchanges = self._looked_at = 0
        self._has_report = self._is_over = False
        self._told: dict[str, object] = {}
        self._seen: dict[tuple[str, int], tuple[object, int]] = {}

    def observe(self, event: Observed) -> None:
        """Take in an event; those that tell nothing about speed are ignored."""
        match event:
            case RunStarted():
                self._started()
            case WorkersJoined():
                self._joined(event)
            case WorkerStarted():
                self._episodes.end([event.worker], self.step + 1, self._num_exchanges)
            case StepTable():
                self._timed(event)
            case SourcesRead():
                self._sources.observe(event)
            case StragglerReported():
                self._reported(event)
            case StallReported():
                self._stall = event if event.is_stalled else None
            case RunEnded():
                self._is_over = True

    def findings(self, *, of_whole_run: bool = False) -> tuple[Finding, ...]:
        """The judgement as it stands: stragglers first, newest first. Cost: O(window x workers).

        Args:
            of_whole_run: Tell of all that was ever slow; else only for a while of what is over.
        """
        told = self._told_of(of_whole_run=of_whole_run)
        stall = [] if self._stall is None else [_stalled(self._stall)]
        rows, longer = self._means(of_plan=True), self._means()
        found = self._diagnose(rows, longer, tuple(reversed(told)))
        return (*stall, *map(self._sources.named, found))

    def _diagnose(
        self, rows: Rows, longer: Rows, episodes: Sequence[Episode] = ()
    ) -> list[Finding]:
        return diagnose(
            rows,
            episodes,
            longer_rows=longer,
            sharing=self._sharing,
            undivided=self._undivided,
        )

    def _told_of(self, *, of_whole_run: bool) -> list[Episode]:
        """What stands; but for the whole run only for a while what is over."""
        if of_whole_run or self._is_over:
            return self._episodes.whole()
        return self._episodes.recent(self._num_exchanges - WINDOW_EXCHANGES)

    def news(self) -> tuple[Finding, ...]:
        """What has changed since the last call: stragglers at once, all else when it has lasted.

        To be called after each exchange.
        """
        is_new = self._num_exchanges > self._looked_at
        if not (is_new or self._has_report):
            return ()
        self._has_report = False
        self._looked_at = self._num_exchanges
        changed = self._changes() if is_new else set()
        new = []
        for found in self.findings():
            topic, gist = _topic(found), _gist(found)
            if topic == "memory" and not found.next_step and topic not in self._told:
                continue  # that there is room is no news
            if found.kind == "stall":
                continue  # it was told when it was found
            is_due = found.kind == "straggler" or topic in changed
            if is_due and _is_news(found, topic) and self._told.get(topic) != gist:
                self._told[topic] = gist
                new.append(found)
        return tuple(new)

    def _changes(self) -> set[str]:
        """Topics of which the newest exchanges have said something else for long enough."""
        recurring = self._spells.recurring(self.step)
        if recurring is not None and not self._confirms(recurring):
            recurring = None
        lasting = self._seen_often(WINDOW_EXCHANGES, LASTING_LOOKS)
        sudden = self._seen_often(*SUDDEN_LOOKS)
        if recurring is not None:
            self._judge_newest(len(self._newest(recurring.since_step)))
            sudden.discard("bound")  # between two spells all looks well
            lasting.add("bound")
        if sudden & self._told.keys():  # another regime: what was before does not count any more
            self._judge_newest(RECENT_EXCHANGES)
        return sudden | lasting

    def _seen_often(self, num_averaged: int, num_looks: int) -> set[str]:
        """Topics of which the mean of some exchanges has said something new for some times."""
        changed = set()
        rows, longer = self._means(num_averaged, of_plan=True), self._means(num_averaged)
        for found in self._diagnose(rows, longer):
            topic, gist = _topic(found), _gist(found)
            seen, count = self._seen.get((topic, num_averaged), (None, 0))
            count = count + 1 if seen == gist else 1
            self._seen[topic, num_averaged] = gist, count
            if count >= num_looks and self._told.get(topic) != gist:
                changed.add(topic)
        return changed

    def _confirms(self, recurring: Recurring) -> bool:
        """Whether it is what binds the run from its first spell on, even without the worst one.

        What was told stands until it is over: between two spells there is always less of it.
        """
        told = self._told.get("bound")
        if isinstance(told, tuple) and told[0] == recurring.kind:
            return True
        tables = [table.rows for table in self._newest(recurring.since_step)]
        tables.remove(max(tables, key=lambda rows: longest_step(rows.values())))
        return bool(tables) and _bound_of(_mean_table(tables)).kind == recurring.kind

    def _newest(self, since_step: int = -1) -> list[_Table]:
        """The exchanges that are judged, from some step on."""
        judged = list(self._tables)[len(self._tables) - self._num_judged :]
        return [table for table in judged if table.step >= since_step]

    def _judge_newest(self, num_exchanges: int) -> None:
        """What was before these exchanges does not count any more."""
        self._num_judged = min(self._num_judged, num_exchanges)
        self._num_of_plan = min(self._num_of_plan, num_exchanges)

    def _started(self) -> None:
        """What was so in one start of a run says nothing of the next one."""
        self._is_over = False
        self._stall = None
        self._episodes.end(self._episodes.workers, self.step + 1, self._num_exchanges)

    def _joined(self, event: WorkersJoined) -> None:
        self._sharing = event.sharing
        self._undivided = max(1, event.undivided)
        self._forget()
        self._tables.clear()
        gone = self._episodes.workers.difference(event.workers)
        self._episodes.end(gone, event.applied_steps, self._num_exchanges)

    def _forget(self) -> None:
        """What was measured with other members or shares tells nothing about these."""
        self._judge_newest(0)
        self._spells.clear()

    def _timed(self, table: StepTable) -> None:
        """Keep the table; the first one of a membership contains its start and is left out."""
        self.step = table.step
        if table.is_first or not table.measured:
            return
        if self._num_judged and not table.is_whole:
            return  # the smaller batch at the end of an epoch tells nothing about the others
        self._num_exchanges += 1
        if self._num_judged and table.follows_plan:
            if not _has_shares_like(self._tables[-1].rows, table.measured, SIMILAR_SHARE_RATIO):
                self._forget()
            elif not _has_shares_like(self._tables[-1].rows, table.measured, SAME_SHARE_RATIO):
                self._num_of_plan = 0
        self._num_judged = min(self._num_judged + 1, WINDOW_EXCHANGES)
        self._num_of_plan = min(self._num_of_plan + 1, WINDOW_EXCHANGES)
        self._tables.append(_Table(table.step, table.measured))
        self._means_of.clear()
        found = _bound_of(table.measured)
        kind = found.kind if found.is_complete else None
        self._spells.observe(table.step - table.num_steps + 1, kind, table.step_seconds)
        for episode in self._episodes.lasting:
            self._charge(episode, since_step=table.step)

    def _reported(self, event: StragglerReported) -> None:
        self._has_report = True
        since = event.since_step if event.since_step >= 0 else event.step
        if not event.is_slow or not math.isfinite(event.speed_ratio):
            is_interrupted = not math.isfinite(event.speed_ratio)
            self._episodes.end(
                [event.worker], since, self._num_exchanges, is_interrupted=is_interrupted
            )
            return
        cause = event.cause or "unknown"
        first_share = 0
        if (before := self._episodes.going_on(event.worker, since)) is not None:
            if before.cause == cause or "unknown" in (before.cause, cause):
                before.until_step = None
                before.is_interrupted = False
                before.speed_ratio = event.speed_ratio
                before.cause = cause
                before.causes = event.causes
                return
            since, first_share = event.step + 1, before.first_share
            # What it has cost is not for the new cause.
            self._episodes.end([event.worker], since, self._num_exchanges)
        episode = Episode(
            worker=event.worker,
            since_step=since,
            speed_ratio=event.speed_ratio,
            cause=cause,
            causes=event.causes,
            first_share=first_share,
        )
        self._episodes.keep(episode)
        rows = [t.rows for t in self._tables if t.step >= since and event.worker in t.rows]
        if rows:
            episode.first_share = rows[0][event.worker].local_batch_size
        self._charge_earlier_shares(episode)
        episode.charged.append((since - 1, episode.cost_seconds))
        self._charge(episode, since_step=since)

    def _charge_earlier_shares(self, episode: Episode) -> None:
        """Add what it has cost before the present shares: they may have been its remedy."""
        earlier = list(self._tables)[: len(self._tables) - self._num_of_plan]
        told = [table.rows for table in earlier if table.step >= episode.since_step]
        for _, alike in groupby(told, key=_shares_of):
            tables = list(alike)
            cost = straggler_cost_seconds(_mean_table(tables), episode.worker, episode.speed_ratio)
            if math.isfinite(cost):
                episode.cost_seconds += cost * sum(map(_num_steps, tables))

    def _charge(self, episode: Episode, *, since_step: int) -> None:
        """Add what it has cost from some step on.

        A worker that is slow now and then is charged with the mean. Steps that no table contains
        were as they should be: they cost nothing.
        """
        of_plan = list(self._tables)[len(self._tables) - self._num_of_plan :]
        told = [table for table in of_plan if table.step >= episode.since_step]
        if not told:
            return
        rows = _mean_table([table.rows for table in told])
        counts = [_num_steps(table.rows) for table in told]
        cost = straggler_cost_seconds(rows, episode.worker, episode.speed_ratio)
        if math.isfinite(cost):
            new = zip(told, counts, strict=True)
            episode.cost_seconds += cost * sum(n for table, n in new if table.step >= since_step)
            episode.charged.append((told[-1].step, episode.cost_seconds))
            del episode.charged[:-MAX_CHARGED]
        num_passed = told[-1].step - told[0].step + counts[0]
        cost *= min(1.0, sum(counts) / num_passed)
        episode.cost_seconds_per_step = cost
        step = max((row.step_seconds for row in rows.values()), default=0.0)
        episode.gain_ratio = cost / (step - cost) if 0 < cost < step else None

    def _means(self, num_exchanges: int = WINDOW_EXCHANGES, *, of_plan: bool = False) -> Rows:
        """Of each worker that has work, over the newest exchanges; of the present shares alone."""
        if not self._num_judged:
            return {}
        number = min(num_exchanges, self._num_of_plan if of_plan else self._num_judged)
        if number not in self._means_of:  # it is asked for again and again
            self._means_of[number] = _mean_table([t.rows for t in list(self._tables)[-number:]])
        return self._means_of[number]


def _stalled(event: StallReported) -> Finding:
    return Finding(
        kind="stall",
        is_complete=True,
        worker=event.workers[0] if len(event.workers) == 1 else None,
        words=stall_in_words(event),
        evidence={"stalled_seconds": event.seconds},
    )


def _bound_of(rows: Rows) -> Finding:
    """What binds the run."""
    return bound({worker: row for worker, row in rows.items() if row.local_batch_size > 0})


def _mean_table(tables: Sequence[Rows]) -> Rows:
    """Of each worker that is in the newest one."""
    return {
        worker: mean_row([table[worker] for table in tables if worker in table])
        for worker in tables[-1]
    }


def _num_steps(table: Rows) -> int:
    return max(row.num_steps for row in table.values())


def _shares_of(table: Rows) -> list[int]:
    return [row.local_batch_size for row in table.values()]


def _has_shares_like(before: Rows, now: Rows, most_ratio: float) -> bool:
    """Whether shares differ by at most this part of the larger one between two tables."""
    if before.keys() != now.keys():
        return False
    sizes = [(before[worker].local_batch_size, now[worker].local_batch_size) for worker in now]
    return all(is_similar(size, other, most_ratio) for size, other in sizes)


def _topic(found: Finding) -> str:
    """What a finding replaces an earlier one of."""
    if found.kind == "straggler":
        return f"straggler {found.worker} {found.evidence['since_step']:.0f}"
    return found.kind if found.kind in ("imbalance", "memory") else "bound"


def _is_news(found: Finding, topic: str) -> bool:
    """That what binds the run is not known is said as well; of the rest only what is known."""
    return found.is_complete or topic == "bound"


def _gist(found: Finding) -> object:
    """What makes a finding another one; its numbers do not."""
    if found.kind == "straggler":  # what it costs comes and goes with the others' noise
        return found.cause, found.is_past
    return found.kind, found.is_complete, found.is_problem, bool(found.next_step)
