"""Which of the stored samples go, for their age or for want of room, and who is told before.

Samples go by whole files. One goes when nobody wants anything in it any more: neither a session
that says itself how long its samples are kept, nor the hub, for what is in no such session. What
the hub may have in all is a limit for everybody: beyond it the oldest go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS

NOTICE_SECONDS = 86400.0
"""So long before its samples go a session is told of; where the room ends sooner, at once."""

LEAST_SPAN_SECONDS = 3600.0
"""Of the samples from which follows how fast they become more."""


class SegmentPart(NamedTuple):
    """What a file has of one node, or of all that no session names.

    Attributes:
        node: Its name; empty: of those that no session names.
        begin: Time of the first sample, microseconds.
        end: Time of the last one, microseconds.
        size_bytes: Of all.
    """

    node: str
    begin: int
    end: int
    size_bytes: int

    def is_of(self, session: RecordingSession) -> bool:
        """Whether any of it may be in a session."""
        is_of_ours = not session.nodes or self.node in session.nodes
        return is_of_ours and _is_in_time(session, self.begin, self.end)

    def is_within(self, session: RecordingSession) -> bool:
        """Whether all of it is in a session."""
        return session.has(self.node, self.begin) and session.has(self.node, self.end)


def _is_in_time(session: RecordingSession, begin: int, end: int) -> bool:
    """Whether anything between two times may be in a session."""
    until = session.until_microseconds
    return end >= session.from_microseconds and (until is None or begin < until)


class StoredSegment(NamedTuple):
    """A file of samples.

    Attributes:
        number: Its own.
        parts: What it has of each node; at least one.
    """

    number: int
    parts: tuple[SegmentPart, ...]

    @property
    def begin(self) -> int:
        """Time of its oldest sample, microseconds."""
        return min(part.begin for part in self.parts)

    @property
    def end(self) -> int:
        """Time of its newest sample, microseconds."""
        return max(part.end for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Of it."""
        return sum(part.size_bytes for part in self.parts)


class Retention(NamedTuple):
    """How long samples are kept by the hub.

    Attributes:
        max_age_seconds: Older ones go; None: whatever their age.
        max_bytes: Of all segments; beyond it the oldest go; None: no limit.
    """

    max_age_seconds: float | None = None
    max_bytes: int | None = None

    def going(
        self,
        segments: Sequence[StoredSegment],
        sessions: Iterable[RecordingSession],
        now: int,
        *,
        ahead_seconds: float = 0.0,
    ) -> list[StoredSegment]:
        """Those that go.

        Args:
            segments: All, the oldest first.
            sessions: Those that have no folder.
            now: By the hub's clock, microseconds.
            ahead_seconds: So long from now, if samples become more as they did in the last day.
        """
        keepers = [
            _Keeper(session, segments, now, ahead_seconds)
            for session in sessions
            if session.has_limits
        ]
        oldest = _before(now, ahead_seconds, self.max_age_seconds)
        found = [each for each in segments if not _is_wanted(each, keepers, oldest)]
        if self.max_bytes is None:
            return found
        sizes = {each.number: each.size_bytes for each in segments}
        growth = ahead_seconds * _bytes_per_second([p for s in segments for p in s.parts], now)
        left = sum(sizes.values()) + growth - sum(sizes[each.number] for each in found)
        going = {each.number for each in found}
        for each in segments:
            if left > self.max_bytes and each.number not in going:
                going.add(each.number)
                left -= sizes[each.number]
        return [each for each in segments if each.number in going]


class _Keeper:
    """A session that says how long its samples are kept."""

    def __init__(
        self,
        session: RecordingSession,
        segments: Sequence[StoredSegment],
        now: int,
        ahead_seconds: float,
    ) -> None:
        self._session = session
        self._wanted: set[int] = set()
        own = [[part for part in each.parts if part.is_of(session)] for each in segments]
        oldest = _before(now, ahead_seconds, session.keep_seconds)
        limit = math.inf if session.keep_bytes is None else session.keep_bytes
        used = 0.0
        if session.until_microseconds is None:
            used = ahead_seconds * _bytes_per_second([part for parts in own for part in parts], now)
        for each, parts in zip(reversed(segments), reversed(own), strict=True):
            used += sum(part.size_bytes for part in parts)
            if parts and used <= limit and each.end >= oldest:
                self._wanted.add(each.number)

    def wants(self, segment: StoredSegment) -> bool:
        """Whether a file is to stay for it."""
        return segment.number in self._wanted

    def has_all_of(self, part: SegmentPart) -> bool:
        """Whether the hub has no word in what becomes of it."""
        return part.is_within(self._session)


def _is_wanted(segment: StoredSegment, keepers: Sequence[_Keeper], oldest: float) -> bool:
    if any(keeper.wants(segment) for keeper in keepers):
        return True
    others = [part for part in segment.parts if not any(k.has_all_of(part) for k in keepers)]
    return any(part.end >= oldest for part in others)


def _before(now: int, ahead_seconds: float, age_seconds: float | None) -> float:
    """What is older is not wanted, microseconds."""
    if age_seconds is None:
        return -math.inf
    return now + (ahead_seconds - age_seconds) * MICROSECONDS


def _bytes_per_second(parts: Sequence[SegmentPart], now: int) -> float:
    """How fast they have become more in the last day."""
    begin = now - NOTICE_SECONDS * MICROSECONDS
    new = [part for part in parts if part.end >= begin]
    first = max(begin, min((part.begin for part in new), default=now))
    span_seconds = max(LEAST_SPAN_SECONDS, (now - first) / MICROSECONDS)
    return sum(part.size_bytes for part in new) / span_seconds


def forgotten(
    sessions: Iterable[RecordingSession], segments: Sequence[StoredSegment]
) -> list[RecordingSession]:
    """Sessions that have ended and whose samples are all gone, as none is kept of their time.

    Args:
        sessions: All.
        segments: What is kept; while that is nothing, all is perhaps in journals.
    """
    if not segments:
        return []
    oldest = min(each.begin for each in segments)
    newest = max(each.end for each in segments)
    # One that limits its samples itself loses them though older ones of others are kept.
    return [
        each
        for each in sessions
        if each.until_microseconds is not None
        and each.until_microseconds < (newest if each.has_limits else oldest)
        and not losing([each], segments)
    ]


def losing(
    sessions: Iterable[RecordingSession], segments: Sequence[StoredSegment]
) -> list[RecordingSession]:
    """Sessions that have samples in segments that go."""
    # Of a large cluster a file has a thousand parts, and most sessions are of another time.
    spans = [(segment.begin, segment.end, segment.parts) for segment in segments]
    return [
        session
        for session in sessions
        if any(
            _is_in_time(session, begin, end) and any(part.is_of(session) for part in parts)
            for begin, end, parts in spans
        )
    ]
