"""Members that wait for each other in different operations: they would do so for ever.

Each heartbeat tells in which operation with the others its worker waits. Nobody can be late where
all wait; and where they wait in different operations, the script calls one of them on some only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_hvd.core.diagnosis.stall import SILENT_SECONDS
from hetero_hvd.messages import Heartbeat, WorkerId

STANDSTILL_SECONDS = 6.0
"""All reductions that were under way have long come in by then, or broken."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """What a worker waits in.

    Attributes:
        told: Its last heartbeat.
        since_seconds: Since when it has said the same without a pause, monotonic clock.
        heard_at_seconds: When it said so last.
    """

    told: Heartbeat
    since_seconds: float
    heard_at_seconds: float

    def is_silent(self, now_seconds: float) -> bool:
        """Whether nobody knows what it has done since it was heard last."""
        return now_seconds - self.heard_at_seconds > SILENT_SECONDS


class Standstill:
    """Finds them. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._waits: dict[WorkerId, Wait] = {}

    def told(self, worker: WorkerId, heartbeat: Heartbeat, now_seconds: float) -> None:
        """A heartbeat has come."""
        known = self._waits.get(worker)
        is_same = known and known.told == heartbeat and not known.is_silent(now_seconds)
        since_seconds = known.since_seconds if known and is_same else now_seconds
        self._waits[worker] = Wait(
            told=heartbeat, since_seconds=since_seconds, heard_at_seconds=now_seconds
        )

    def found(self, members: Sequence[WorkerId], now_seconds: float) -> str:
        """Who waits in what and where, in a sentence; empty as long as somebody may get on."""
        waits = {worker: self._waits.get(worker) for worker in members}
        first: dict[str, WorkerId] = {}
        for worker, wait in waits.items():
            if wait is None or now_seconds < wait.since_seconds + STANDSTILL_SECONDS:
                return ""
            if wait.is_silent(now_seconds) or not wait.told.operation:
                return ""
            first.setdefault(wait.told.operation, worker)
        if len(first) < 2:  # noqa: PLR2004
            return ""
        words = [
            f"{worker} waits in {operation}"
            + (f" ({place})" if (place := self._place(worker)) else "")
            for operation, worker in first.items()
        ]
        return f"{' while '.join(words)}: every worker must call the same, in the same order"

    def _place(self, worker: WorkerId) -> str:
        return self._waits[worker].told.place
