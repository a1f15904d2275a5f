"""Workers that are guests: they leave a node when its owner comes, and may come back later."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hetero_hvd.config import NodeConfig
from hetero_hvd.core.step_table import Observed
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.messages import OwnerSeen, WorkerId


class GuestWorkers:
    """Observes the bus. Used in the loop's thread.

    Args:
        slots: The workers.
        say: Tells people.
    """

    def __init__(self, slots: WorkerPool, say: Callable[[str], None]) -> None:
        self._slots = slots
        self._say = say
        self._owners: dict[str, str] = {}
        self._away: dict[WorkerId, NodeConfig] = {}

    def away(self) -> Iterable[NodeConfig]:
        """Nodes with a worker that may come back: they are to be heard of."""
        return self._away.values()

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Hear of an owner; an observer of the bus."""
        if isinstance(event, OwnerSeen):
            self._owners[event.node] = event.words
            self.look()

    def look(self) -> None:
        """Let go who is on a node whose owner is there, also if it has just been started.

        Who is left alone in the job goes on until others have taken over, see `WorkerPool`.
        """
        for worker in [each for each in self._away if not self._slots.is_withdrawn(each)]:
            del self._away[worker]  # nodes.yaml has changed, or the user has drained it too
        for node, words in self._owners.items():
            here = [slot for slot in self._slots.all if slot.worker.node == node]
            leaving = [slot for slot in here if slot.is_wanted and slot.node.guest]
            if words and leaving:
                self._away |= {slot.worker: slot.node for slot in leaving}
                self._slots.withdraw(leaving, words, f"makes room for the owner ({words})")
            back = [worker for worker in self._away if worker.node == node]
            if not words and back and self._slots.may_restart:
                self._say(
                    f"the owner of {node} has gone: {', '.join(map(str, back))} may come back"
                )
                for worker in back:
                    del self._away[worker]
                self._slots.readmit(back)
