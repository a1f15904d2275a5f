"""What is heard of the nodes, and those who let workers go because of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hetero_hvd.config import ClusterConfig
from hetero_hvd.driver.guard.device_guard import DeviceGuard
from hetero_hvd.driver.guard.guest_workers import GuestWorkers
from hetero_hvd.driver.guard.notices import Notices
from hetero_hvd.driver.workers.node_samples import NodeSamples
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.run.event_bus import EventBus

GUARD, OWNERS = "the guard", "what makes room for owners"


class NodeCare:
    """Has the nodes sampled, ailing devices guarded, and room made for owners.

    Args:
        run_id: Of the job.
        cluster: The settings; see `follow`.
        slots: The workers.
        bus: Is told of all that is heard and done.
        say: Tells people.
    """

    def __init__(
        self,
        run_id: str,
        cluster: ClusterConfig,
        slots: WorkerPool,
        bus: EventBus,
        say: Callable[[str], None],
    ) -> None:
        self._bus = bus
        self._notices = Notices(run_id, cluster.guard, say)
        self._guard = DeviceGuard(cluster, slots, bus, say=say, tell=self._notices.tell)
        self._guests = GuestWorkers(slots, say)
        bus.subscribe(self._guard.observe, GUARD)
        bus.subscribe(self._guests.observe, OWNERS)
        self._samples = NodeSamples(
            lambda: slots.all,
            bus,
            seconds=cluster.job.sample_seconds,
            away=lambda: itertools.chain(self._guard.away(), self._guests.away()),
        )

    def look(self, now_seconds: float) -> None:
        """Do what is due. Call it often.

        Args:
            now_seconds: Monotonic.
        """
        self._samples.look(now_seconds)
        with self._bus.tolerance.watching(GUARD):
            self._guard.look()
        with self._bus.tolerance.watching(OWNERS):
            self._guests.look()

    def follow(self, cluster: ClusterConfig) -> None:
        """Take the settings as they are now."""
        with self._bus.tolerance.watching(GUARD):
            self._notices.follow(cluster.guard)
            self._guard.follow(cluster)

    async def close(self) -> None:
        """Nothing needs to be heard any more."""
        await self._samples.close()

    def end_notices(self) -> None:
        """See `Notices.close`."""
        self._notices.close()
