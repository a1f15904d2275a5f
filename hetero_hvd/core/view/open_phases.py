"""The phases that a script wants to have recorded, as long as any worker is in them."""

from __future__ import annotations

from hetero_hvd.messages import SessionsWanted, WorkerExited, WorkerId


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
