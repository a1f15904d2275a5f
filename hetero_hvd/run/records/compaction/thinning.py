"""What is old in the catalogue of a run becomes coarser, so that its size has a bound.

Rollups and the events that come every few seconds are merged into longer intervals as they age.
What happens seldom stays as it is; only where a script makes one of these kinds come all the time
do the older ones of it become fewer.
"""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from hetero_hvd.messages import (
    Event,
    NodesPriced,
    RunEnded,
    RunStarted,
    WorkerExited,
    WorkersJoined,
    WorkerStarted,
    event_from_json,
    event_to_json,
)
from hetero_hvd.run.records.compaction.merging import MERGED
from hetero_hvd.run.records.rollup import COLUMNS, INTERVAL_SECONDS, PHASES

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS


class Tier(NamedTuple):
    """From an age on, one row for an interval."""

    age_seconds: float
    interval_seconds: float


TIERS = (
    Tier(60.0, INTERVAL_SECONDS),
    Tier(HOUR_SECONDS, 60.0),
    Tier(DAY_SECONDS, 600.0),
    Tier(14 * DAY_SECONDS, 2 * HOUR_SECONDS),
)
MAX_EVENTS_OF_A_KIND = 20_000
"""Of those that happen seldom. Half of the older half goes where there are more."""

KEPT = {
    kind.__name__
    for kind in (RunStarted, NodesPriced, WorkerStarted, WorkerExited, WorkersJoined, RunEnded)
}
"""All of them, as what a run cost is counted from them; restarts are limited anyway."""

SCHEMA = "CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind, at_unix_seconds);"


class Thinning:
    """Keeps a catalogue small while it is written; what it has done it does not do again.

    Args:
        connection: To the catalogue with all its tables, without a transaction under way.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._done = dict.fromkeys(TIERS, -math.inf)
        self._num_events: dict[str, int] = dict(
            connection.execute("SELECT kind, count(*) FROM events GROUP BY kind").fetchall()
        )

    def added(self, kind: str) -> None:
        """An event of this kind was written."""
        self._num_events[kind] = self._num_events.get(kind, 0) + 1

    def thin(self, now_unix_seconds: float) -> None:
        """Make coarser what has become old enough by now; often nothing.

        Raises:
            sqlite3.Error: It cannot be done; nothing is lost by that.
        """
        for tier in TIERS:
            latest = now_unix_seconds - tier.age_seconds
            until = latest - latest % tier.interval_seconds
            since = self._done[tier]
            if until > since:
                with _Transaction(self._connection):
                    self._merge_events(tier, since, until)
                    self._merge_logged(tier, since, until)
                    if tier.interval_seconds > INTERVAL_SECONDS:
                        self._merge_rollups(tier, since, until)
                self._done[tier] = until
        for kind, number in self._num_events.items():
            if number > MAX_EVENTS_OF_A_KIND and kind not in KEPT:
                with _Transaction(self._connection):
                    self._halve(kind)

    def _merge_events(self, tier: Tier, since: float, until: float) -> None:
        marks = ", ".join("?" * len(MERGED))
        rows = self._connection.execute(
            "SELECT id, at_unix_seconds, kind, body FROM events "  # noqa: S608 - marks alone
            f"WHERE kind IN ({marks}) AND at_unix_seconds >= ? AND at_unix_seconds < ? ORDER BY id",
            (*MERGED, since, until),
        ).fetchall()
        groups: dict[Hashable, list[tuple[int, Event]]] = defaultdict(list)
        for number, at_unix_seconds, kind, body in rows:
            event = event_from_json(body)
            interval = at_unix_seconds // tier.interval_seconds
            groups[kind, interval, MERGED[kind].whose(event)].append((number, event))
        for group in groups.values():
            if len(group) > 1:
                kind = type(group[-1][1]).__name__
                merged = MERGED[kind].merge([event for _, event in group])
                self._replace(kind, [number for number, _ in group], merged)

    def _replace(self, kind: str, numbers: Sequence[int], event: Event) -> None:
        """Put one in the place of several; it has the number and the time of the last one."""
        *others, last = numbers
        self._connection.execute(
            "UPDATE events SET body = ? WHERE id = ?", (event_to_json(event), last)
        )
        self._connection.executemany("DELETE FROM events WHERE id = ?", [(n,) for n in others])
        self._num_events[kind] -= len(others)

    def _merge_logged(self, tier: Tier, since: float, until: float) -> None:
        """Values that a script logs: one row for each name, interval and epoch."""
        rows = self._connection.execute(
            "SELECT id, at_unix_seconds, name, epoch, count, mean, minimum, maximum FROM logged "
            "WHERE at_unix_seconds >= ? AND at_unix_seconds < ? ORDER BY id",
            (since, until),
        ).fetchall()
        groups: dict[Hashable, list[tuple[Any, ...]]] = defaultdict(list)
        for number, at_unix_seconds, name, epoch, *found in rows:
            key = name, at_unix_seconds // tier.interval_seconds, epoch
            groups[key].append((number, *found))
        for group in groups.values():
            if len(group) > 1:
                numbers, counts, means, smallest, largest = zip(*group, strict=True)
                merged = sum(counts), _mean(means, counts), _known(min, smallest)
                self._connection.execute(
                    "UPDATE logged SET count = ?, mean = ?, minimum = ?, maximum = ? WHERE id = ?",
                    (*merged, _known(max, largest), numbers[-1]),
                )
                gone = [(number,) for number in numbers[:-1]]
                self._connection.executemany("DELETE FROM logged WHERE id = ?", gone)

    def _merge_rollups(self, tier: Tier, since: float, until: float) -> None:
        sums = ", ".join(_MERGED_COLUMNS)
        within = "at_unix_seconds >= :since AND at_unix_seconds < :until"
        values = {"since": since, "until": until, "interval": tier.interval_seconds}
        rows = self._connection.execute(
            f"SELECT {sums} FROM rollups WHERE {within} GROUP BY 1, 2 HAVING count(*) > 1",  # noqa: S608 - no data
            values,
        ).fetchall()
        self._connection.executemany(
            "DELETE FROM rollups WHERE worker = ? AND at_unix_seconds >= ? AND at_unix_seconds < ?",
            [(row[1], row[0], row[0] + tier.interval_seconds) for row in rows],
        )
        marks = ", ".join("?" * len(COLUMNS))
        self._connection.executemany(
            f"INSERT INTO rollups ({', '.join(COLUMNS)}) VALUES ({marks})",  # noqa: S608 - no data
            rows,
        )

    def _halve(self, kind: str) -> None:
        """Leave half of the older half, evenly over its time, the first one among them."""
        numbers = [
            number
            for (number,) in self._connection.execute(
                "SELECT id FROM events WHERE kind = ? ORDER BY id", (kind,)
            )
        ]
        older = numbers[: len(numbers) // 2]
        width = (older[-1] - older[0] + 1) / (len(older) // 2)
        kept = {int((number - older[0]) / width): number for number in reversed(older)}
        gone = [(number,) for number in set(older) - set(kept.values())]
        self._connection.executemany("DELETE FROM events WHERE id = ?", gone)
        self._num_events[kind] -= len(gone)


def _known(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _mean(means: Sequence[float | None], counts: Sequence[int]) -> float | None:
    """Of those that are numbers."""
    pairs = [(mean, n) for mean, n in zip(means, counts, strict=True) if mean is not None and n]
    return sum(mean * n for mean, n in pairs) / sum(n for _, n in pairs) if pairs else None


def _whole(name: str, combined: str) -> str:
    """A part would be taken for the whole: NULL where one of them is."""
    return f"CASE WHEN count({name}) = count(*) THEN {combined} END"


_MERGED_COLUMNS = {
    "at_unix_seconds": "CAST(at_unix_seconds / :interval AS INTEGER) * :interval",
    "worker": "worker",
    "last_step": "max(last_step)",
    "num_steps": "sum(num_steps)",
    "samples": "sum(samples)",
    "memory_bytes": "max(memory_bytes)",
    **{name: _whole(name, f"sum({name})") for name in PHASES},
    "epoch": "max(epoch)",
    "loss": _whole("loss", "sum(loss * num_steps) / sum(num_steps)"),
}.values()


class _Transaction:
    """All of it or nothing; readers see the one or the other."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._connection.execute("ROLLBACK")
            return
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error:  # as of a full disk: else the next one could not begin
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise
