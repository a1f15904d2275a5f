"""Which of the stored samples go, for their age or for want of room, and who is told before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS

NOTICE_SECONDS = 86400.0
"""So long before its samples go a session is told of; where the room ends sooner, at once."""


class SegmentAge(NamedTuple):
    """A file of samples.

    Attributes:
        number: Its own.
        end: Time of its newest sample, microseconds.
        size_bytes: Of it.
    """

    number: int
    end: int
    size_bytes: int


class Retention(NamedTuple):
    """How long samples are kept.

    Attributes:
        max_age_seconds: Older ones go; None: whatever their age.
        max_bytes: Of all segments; beyond it the oldest go; None: no limit.
    """

    max_age_seconds: float | None = None
    max_bytes: int | None = None

    def going(self, segments: Sequence[SegmentAge], now: int) -> list[SegmentAge]:
        """Those that go now.

        Args:
            segments: All, the oldest first.
            now: By the hub's clock, microseconds.
        """
        left_bytes = sum(segment.size_bytes for segment in segments)
        found = []
        for segment in segments:
            is_old = self._is_old(segment, now)
            is_too_much = self.max_bytes is not None and left_bytes > self.max_bytes
            if not (is_old or is_too_much):
                break
            found.append(segment)
            left_bytes -= segment.size_bytes
        return found

    def going_soon(self, segments: Sequence[SegmentAge], now: int) -> list[SegmentAge]:
        """Those that go within a day, if only their age counts."""
        later = now + round(NOTICE_SECONDS * MICROSECONDS)
        return [segment for segment in segments if self._is_old(segment, later)]

    def _is_old(self, segment: SegmentAge, now: int) -> bool:
        if self.max_age_seconds is None:
            return False
        return segment.end < now - self.max_age_seconds * MICROSECONDS


def losing(
    sessions: Iterable[RecordingSession], segments: Sequence[SegmentAge]
) -> list[RecordingSession]:
    """Sessions that begin before the end of segments that go."""
    if not segments:
        return []
    end = max(segment.end for segment in segments)
    return [session for session in sessions if session.from_microseconds <= end]
