"""The phases that a script wants to have recorded, as long as any worker is in them."""

from __future__ import annotations

from hetero_hvd.messages import ClockMeasured, SessionsWanted, WorkerExited, WorkerId

MAX_LATE_SECONDS = 60.0
"""A clock that was set meanwhile moves no phase by more."""


class OpenPhases:
    """A fold over the events of a run."""

    def __init__(self) -> None:
        self._inside: dict[WorkerId, frozenset[str]] = {}

    def observe(self, event: object) -> frozenset[str] | None:
        """Names of those that any worker is in; None: the event is about no phase."""
        match event:
            case SessionsWanted(worker=worker, names=names):
                self._inside[worker] = frozenset(names)
            case WorkerExited(worker=worker) if worker in self._inside:
                del self._inside[worker]
            case _:
                return None
        return frozenset().union(*self._inside.values())


class PhaseLateness:
    """How late the driver hears of a phase, as it does where it has much to do.

    A fold over the events of a run.
    """

    def __init__(self) -> None:
        self._offset_seconds: dict[WorkerId, float] = {}

    def observe(self, event: object, now_unix_seconds: float) -> float:
        """Take in an event.

        Args:
            event: What is heard.
            now_unix_seconds: When, by the driver's clock.

        Returns:
            How long ago it happened, in seconds, as far as the worker's clock is known; else 0.
        """
        match event:
            case ClockMeasured(worker=worker, offset_seconds=seconds):
                self._offset_seconds[worker] = seconds
            case SessionsWanted(worker=worker, at_unix_seconds=at, ago_seconds=ago):
                offset = self._offset_seconds.get(worker)
                if not at or offset is None:
                    return ago
                return ago + min(max(0.0, now_unix_seconds + offset - at), MAX_LATE_SECONDS)
        return 0.0
