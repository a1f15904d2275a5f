"""Sessions: names for parts of what is stored. They cost nothing, and any number overlap."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hetero_hvd.core.names import RECORDED_NAME
from hetero_hvd.core.recording.timeline import MAX_TIME_SECONDS, MICROSECONDS
from hetero_hvd.errors import UserError

DEFAULT_EVERY_SECONDS = 1.0
MIN_EVERY_SECONDS, MAX_EVERY_SECONDS = 0.25, 60.0
MAX_KEPT = 2**62
"""Seconds or bytes."""


class RecordingSession(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the stream.

    Attributes:
        name: Of no other session of the hub.
        from_microseconds: Its begin, by the hub's clock, since 1970.
        until_microseconds: Its end, which is not in it; None: it goes on.
        nodes: Names of nodes; empty: all.
        every_seconds: Between two samples of a node; of all sessions that go on the smallest holds.
        keep_seconds: So long its samples stay in the store; None: as long as the hub says.
        keep_bytes: So many bytes of them at most, the newest; None: the same.
    """

    name: str
    from_microseconds: int
    until_microseconds: int | None = None
    nodes: tuple[str, ...] = ()
    every_seconds: float = DEFAULT_EVERY_SECONDS
    keep_seconds: float | None = None
    keep_bytes: int | None = None

    def __post_init__(self) -> None:
        RECORDED_NAME.check("session", self.name)
        if not MIN_EVERY_SECONDS <= self.every_seconds <= MAX_EVERY_SECONDS:
            raise UserError(
                f"session {self.name}: every {self.every_seconds:g} s, must be from "
                f"{MIN_EVERY_SECONDS:g} s to {MAX_EVERY_SECONDS:g} s"
            )
        end = self.until_microseconds
        if end is not None and end < self.from_microseconds:
            raise UserError(
                f"session {self.name}: ends before it begins; give a begin that is before the end"
            )
        latest = MAX_TIME_SECONDS * MICROSECONDS
        if not all(0 <= at <= latest for at in (self.from_microseconds, end or 0)):
            raise UserError(f"session {self.name}: its begin and end must be from 1970 to 9999")
        for unit, limit in (("seconds", self.keep_seconds), ("bytes", self.keep_bytes)):
            if limit is not None and not 0 < limit <= MAX_KEPT:
                raise UserError(
                    f"session {self.name}: keep {limit} {unit}, must be above 0 and at most "
                    f"{MAX_KEPT}"
                )

    @property
    def has_limits(self) -> bool:
        """Whether it says itself how long its samples are kept."""
        return self.keep_seconds is not None or self.keep_bytes is not None

    def has(self, node: str, at_microseconds: int) -> bool:
        """Whether a sample belongs to it."""
        end = self.until_microseconds
        is_after = at_microseconds >= self.from_microseconds
        is_of_ours = not self.nodes or node in self.nodes
        return is_of_ours and is_after and (end is None or at_microseconds < end)


def wanted_seconds(sessions: Iterable[RecordingSession], node: str) -> float:
    """How often a node is to be sampled: as the fastest session that goes on wants it."""
    going_on = [
        session.every_seconds
        for session in sessions
        if session.until_microseconds is None and (not session.nodes or node in session.nodes)
    ]
    return min(going_on, default=DEFAULT_EVERY_SECONDS)
