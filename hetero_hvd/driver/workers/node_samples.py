"""What the nodes do, as one supervisor of each tells, published on the bus."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.node_watches import NodeWatches
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.messages import NodeEquipped, event_to_json
from hetero_hvd.probes.sampling.local_samples import read_sample
from hetero_hvd.run.event_bus import EventBus

_EARLY_RATIO = 0.5
"""Of the time between two samples: who tells more often is not listened to."""


class NodeSamples:
    """Asks one supervisor of each node, and another one when that is gone. For the loop's thread.

    Args:
        slots: Gives those there are.
        away: Gives nodes that are to be heard of even if none of their workers runs; a supervisor
            without a worker tells of these.
        bus: Where to publish.
        seconds: Between two samples of a node; 0: nobody is asked.

    Attributes:
        num_refused: Samples that were none.
    """

    def __init__(
        self,
        slots: Callable[[], Iterable[Slot]],
        bus: EventBus,
        *,
        seconds: float,
        away: Callable[[], Iterable[NodeConfig]] = tuple,
    ) -> None:
        self._slots = slots
        self._away = away
        self._watches = NodeWatches()
        self._bus = bus
        self._seconds = seconds
        self._asked: dict[str, WorkerProcess] = {}
        self._sampled_at_seconds: dict[str, float] = {}
        self._equipment: dict[str, bytes] = {}
        self.num_refused = 0

    def look(self, now_seconds: float) -> None:
        """See to it that all nodes tell, and publish what they have told.

        Args:
            now_seconds: Monotonic.
        """
        if not self._seconds:
            return
        running = {slot.worker.node for slot in self._slots() if slot.process is not None}
        self._watches.follow(node for node in self._away() if node.name not in running)
        present: dict[str, list[WorkerProcess]] = {}
        for node, process, samples in self._supervisors():
            if process is not None:
                present.setdefault(node, []).append(process)
            while samples:
                self._told(node, samples.popleft(), now_seconds)
        for node, processes in present.items():
            if self._asked.get(node) not in processes:
                self._asked[node] = processes[0]
                processes[0].tell(f"SAMPLE {self._seconds:g}")

    async def close(self) -> None:
        """Nobody needs to tell any more."""
        await self._watches.close()

    def _supervisors(self) -> Iterator[tuple[str, WorkerProcess | None, deque[bytes]]]:
        """Node, process and what it has told, of all there are."""
        for slot in self._slots():
            yield slot.worker.node, slot.process, slot.output.samples
        for watch in self._watches:
            yield watch.name, watch.process, watch.samples

    def _told(self, node: str, sample: bytes, now_seconds: float) -> None:
        told = read_sample(sample)
        since_seconds = now_seconds - self._sampled_at_seconds.get(node, float("-inf"))
        if told is None:
            self.num_refused += 1
        elif isinstance(told, NodeEquipped):
            told = msgspec.structs.replace(told, node=node)
            if self._equipment.get(node) != event_to_json(told):
                self._equipment[node] = event_to_json(told)
                self._bus.publish(told)
        elif since_seconds >= _EARLY_RATIO * self._seconds:
            self._sampled_at_seconds[node] = now_seconds
            self._bus.publish(msgspec.structs.replace(told, node=node))
