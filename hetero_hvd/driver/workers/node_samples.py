"""What the nodes do, and their owners, as one supervisor of each tells, published on the bus."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.node_watches import NodeWatches
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.messages import NodeEquipped, OwnerSeen, event_to_json
from hetero_hvd.probes.sampling.local_samples import read_sample
from hetero_hvd.probes.sampling.node_orders import OWNER, SAMPLE
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
        seconds: Between two samples of a node; 0: nobody is asked for any.

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
        self._asked: dict[str, tuple[WorkerProcess, tuple[str, ...]]] = {}
        self._owners: dict[str, OwnerSeen] = {}
        self._sampled_at_seconds: dict[str, float] = {}
        self._equipment: dict[str, bytes] = {}
        self.num_refused = 0

    def look(self, now_seconds: float) -> None:
        """See to it that all nodes tell, and publish what they have told.

        Args:
            now_seconds: Monotonic.
        """
        running = {slot.worker.node for slot in self._slots() if slot.process is not None}
        self._watches.follow(node for node in self._away() if node.name not in running)
        present: dict[str, list[WorkerProcess]] = {}
        nodes: dict[str, NodeConfig] = {}
        for node, process, samples in self._supervisors():
            nodes[node.name] = node
            if process is not None:
                present.setdefault(node.name, []).append(process)
            while samples:
                self._told(node, samples.popleft(), now_seconds)
        for name, processes in present.items():
            self._ask(nodes[name], processes)

    def _ask(self, node: NodeConfig, processes: Sequence[WorkerProcess]) -> None:
        """Tell one of its supervisors what is wanted of a node, if none has heard it yet."""
        asked, before = self._asked.get(node.name, (processes[0], ()))
        if asked not in processes:
            asked, before = processes[0], ()
        wanted: tuple[str, ...] = (f"{SAMPLE}{self._seconds:g}",) if self._seconds else ()
        if node.guest:
            wanted += (owner_order(node),)
        if wanted != before:
            self._asked[node.name] = asked, wanted
            is_here = bool(self._owners.get(node.name, OwnerSeen()).words)
            for order in wanted:
                if order not in before:
                    asked.tell(
                        order if order.startswith(SAMPLE) else owner_order(node, is_here=is_here)
                    )

    async def close(self) -> None:
        """Nobody needs to tell any more."""
        await self._watches.close()

    def _supervisors(self) -> Iterator[tuple[NodeConfig, WorkerProcess | None, deque[bytes]]]:
        """Node, process and what it has told, of all there are."""
        for slot in self._slots():
            yield slot.node, slot.process, slot.output.samples
        for watch in self._watches:
            yield watch.node, watch.process, watch.samples

    def _told(self, config: NodeConfig, sample: bytes, now_seconds: float) -> None:
        node = config.name
        told = read_sample(sample)
        if isinstance(told, OwnerSeen) and config.guest:
            told = msgspec.structs.replace(told, node=node)
            if self._owners.get(node) != told:
                self._owners[node] = told
                self._bus.publish(told)
            return
        since_seconds = now_seconds - self._sampled_at_seconds.get(node, float("-inf"))
        if told is None or isinstance(told, OwnerSeen) or not self._seconds:
            self.num_refused += 1
        elif isinstance(told, NodeEquipped):
            told = msgspec.structs.replace(told, node=node)
            if self._equipment.get(node) != event_to_json(told):
                self._equipment[node] = event_to_json(told)
                self._bus.publish(told)
        elif since_seconds >= _EARLY_RATIO * self._seconds:
            self._sampled_at_seconds[node] = now_seconds
            self._bus.publish(msgspec.structs.replace(told, node=node))


def owner_order(node: NodeConfig, *, is_here: bool = False) -> str:
    """Ask a supervisor whether the owner of its node uses it.

    Args:
        node: Which.
        is_here: Whether he did when another supervisor told of it.
    """
    gpus = node.devices if node.devices is not None or node.slots is None else range(node.slots)
    wish = {
        "file": node.guest_file,
        "processors": node.guest_processors,
        "idle_seconds": node.guest_idle_seconds,
        "gpus": None if gpus is None else list(gpus),
        "is_here": is_here,
    }
    return f"{OWNER}{json.dumps(wish)}"
