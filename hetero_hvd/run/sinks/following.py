"""A run read along as it is recorded, in whichever of its folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hetero_hvd.errors import JobError
from hetero_hvd.messages import RunStarted, WorkersJoined
from hetero_hvd.run.records.parts import furthest, joined, parts_of
from hetero_hvd.run.records.reader import START, Bookmark, Record, read_record


class FollowedRun:
    """Gives what is new of a run: at first all, then what the part adds that goes on with it.

    The others are copies of that one. A part counts from the membership on that no other has.

    Args:
        folder: One of its folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._marks: dict[Path, Bookmark] = {}
        self._active: Path | None = None
        self._rendezvous_id = 0

    def read(self) -> Record:
        """What was added since the last time.

        Raises:
            JobError: There is no catalogue in the folder, or it is not one.
        """
        found = dict(self._added())
        if self._active is None:
            records = list(found.values())
            self._rendezvous_id, best = furthest(records)
            self._active = list(found)[best]
            return joined(records)
        news = [found[self._active]] if self._active in found else []
        for part, record in found.items():
            newest = max(_memberships(record), default=0)
            if newest > self._rendezvous_id:
                if part != self._active:
                    news.append(_later_than(record, self._rendezvous_id))
                self._active = part
                self._rendezvous_id = newest
        return _together(news)

    def _added(self) -> Iterator[tuple[Path, Record]]:
        for part in parts_of(self._folder):
            try:
                record = read_record(part, self._marks.get(part, START))
            except JobError:
                if part.name == self._folder.absolute().name:
                    raise
                continue
            self._marks[part] = record.mark
            yield part, record


def _memberships(record: Record) -> Iterator[int]:
    return (event.rendezvous_id for _, event in record.events if isinstance(event, WorkersJoined))


def _later_than(record: Record, rendezvous_id: int) -> Record:
    """What begins with the first membership after this one; a start belongs to it."""
    events = record.events
    begin = next(
        number
        for number, (_, event) in enumerate(events)
        if isinstance(event, WorkersJoined) and event.rendezvous_id > rendezvous_id
    )
    begin -= begin > 0 and isinstance(events[begin - 1][1], RunStarted)
    at = events[begin][0]
    return Record(
        events=events[begin:],
        rollups=tuple(row for row in record.rollups if row["at_unix_seconds"] >= at),
        logged=tuple(told for told in record.logged if told[0] >= at),
    )


def _together(records: Sequence[Record]) -> Record:
    return Record(
        events=tuple(told for record in records for told in record.events),
        rollups=tuple(row for record in records for row in record.rollups),
        logged=tuple(told for record in records for told in record.logged),
    )
