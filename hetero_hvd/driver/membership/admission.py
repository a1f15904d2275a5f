"""Who is ready: whether it fits to the others and has its GPU alone, and what its clock shows."""

from __future__ import annotations

from hetero_hvd.driver.membership.clock_offsets import ClockOffsets
from hetero_hvd.driver.membership.compatibility import Compatibility
from hetero_hvd.driver.membership.gpu_conflict import conflict_in_words
from hetero_hvd.driver.membership.membership import Membership
from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.messages import ClockTold, Ready
from hetero_hvd.run.event_bus import EventBus


class Admission:
    """Receives the workers. Used in the loop's thread only.

    Args:
        slots: The workers.
        membership: Who of them trains.
        channels: The ways to them.
        bus: Hears of clocks.
        console: Is told of what does not fit.
    """

    def __init__(
        self,
        slots: WorkerPool,
        membership: Membership,
        channels: ChannelServer,
        bus: EventBus,
        console: Console,
    ) -> None:
        self._slots = slots
        self._membership = membership
        self._channels = channels
        self._compatibility = Compatibility(console)
        self._clocks = ClockOffsets(channels.send, bus, console)

    def ready(self, slot: Slot, ready: Ready) -> None:
        """A worker waits to be admitted, or has its channel again."""
        reason = self._why_not(slot, ready) if slot.admission is None else None
        if reason is not None:
            self._slots.refuse(slot, reason)
            return
        self._slots.became_ready(slot, ready)
        if slot.admission is not None:  # its channel broke, perhaps before the first Admit came
            self._channels.send(slot.host, slot.admission)
        self._clocks.ask(slot.host)

    def _why_not(self, slot: Slot, ready: Ready) -> str | None:
        others = [other for other in self._slots.all if other is not slot]
        reason = conflict_in_words(slot, ready, others)
        if reason is None and self._membership.has_started:
            return self._compatibility.why_not(slot.worker, ready, others)
        return reason

    def told_time(self, slot: Slot, answer: ClockTold) -> None:
        """A worker has said what its clock shows."""
        self._clocks.told(slot.host, slot.worker, answer)

    def check_start(self) -> bool:
        """Before the workers that are ready become members.

        Returns:
            Whether all of them may; else some are refused just now, for their data.

        Raises:
            JobError: They cannot train together.
        """
        self._compatibility.check_start(self._slots.all)
        apart = self._compatibility.other_data(self._slots.all)
        for slot in list(self._slots.all):
            if slot.worker in apart:
                self._slots.refuse(slot, apart[slot.worker])
        return not apart

    def look(self) -> None:
        """Ask for the time again, now and then. Call it often."""
        for slot in self._slots.all:
            if slot.ready is not None:
                self._clocks.ask_again(slot.host)

    def leaves(self, slot: Slot) -> None:
        """A worker takes no part any more: the others do not wait for the end of its process.

        The job does wait for that of the last one, which says how it ended.
        """
        if self._membership.present == [slot]:
            return
        slot.left.set()
        self._slots.changed()
        self._membership.left(slot.host)

    def gone(self, host: str) -> None:
        """A worker's process has ended, or the way to it; if it still lives, it must not go on."""
        self._clocks.forget(host)
        self._channels.cut(host)
