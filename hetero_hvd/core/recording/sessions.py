"""Sessions: names for parts of what is stored. They cost nothing, and any number overlap."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from hetero_hvd.errors import UserError

SESSION_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
DEFAULT_EVERY_SECONDS = 1.0
MIN_EVERY_SECONDS, MAX_EVERY_SECONDS = 0.25, 60.0
MAX_TIME_MICROSECONDS = 253_402_300_800 * 10**6
"""The end of the year 9999, the last one that dates are written of."""

MAX_KEPT = 2**62
"""Seconds or bytes."""


def check_name(name: str) -> None:
    """See that a session can be called so.

    Raises:
        UserError: It cannot.
    """
    if SESSION_NAME.fullmatch(name) is None:
        raise UserError(
            f"session {name!r}: must be letters, digits, '-', '_' and '.', at most 64, and begin "
            "and end with a letter or digit"
        )


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
        check_name(self.name)
        if not MIN_EVERY_SECONDS <= self.every_seconds <= MAX_EVERY_SECONDS:
            raise UserError(
                f"session {self.name}: every {self.every_seconds:g} s, must be from "
                f"{MIN_EVERY_SECONDS:g} s to {MAX_EVERY_SECONDS:g} s"
            )
        end = self.until_microseconds
        if end is not None and end < self.from_microseconds:
            raise UserError(f"session {self.name}: ends before it begins; give --from before --to")
        if not all(0 <= at <= MAX_TIME_MICROSECONDS for at in (self.from_microseconds, end or 0)):
            raise UserError(f"session {self.name}: --from and --to must be from 1970 to 9999")
        for flag, limit in (("--keep", self.keep_seconds), ("--keep-bytes", self.keep_bytes)):
            if limit is not None and not 0 < limit <= MAX_KEPT:
                raise UserError(
                    f"session {self.name}: {flag} {limit}, must be above 0 and at most {MAX_KEPT}"
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
