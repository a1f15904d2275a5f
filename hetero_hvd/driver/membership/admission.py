"""Who is ready: whether it fits to the others, reaches them and has its GPU alone; its clock."""

from __future__ import annotations

import time
from collections import Counter

from hetero_hvd.config import JobConfig
from hetero_hvd.core.backoff import doubled
from hetero_hvd.driver.membership.clock_offsets import ClockOffsets
from hetero_hvd.driver.membership.compatibility import Compatibility
from hetero_hvd.driver.membership.gpu_conflict import conflict_in_words
from hetero_hvd.driver.membership.membership import Membership
from hetero_hvd.driver.membership.route_checks import RouteChecks
from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.errors import TryAgainError
from hetero_hvd.messages import ClockTold, Ready, RouteTold, StallReported, WorkerId
from hetero_hvd.run.event_bus import EventBus

RETURN_SECONDS, MAX_RETURN_SECONDS = 60.0, 600.0
"""Until a worker that had no route to others is tried again; it doubles up to the second."""

UNMET_SECONDS = 2.0
"""So long members may not get on with meeting until the routes among them are looked at."""


class Admission:
    """Receives the workers. Used in the loop's thread only.

    Args:
        job: For min_np, and whether nodes announce themselves.
        slots: The workers.
        membership: Who of them trains.
        channels: The ways to them.
        bus: Hears of clocks, and tells that nobody steps.
        console: Is told of what does not fit.
    """

    def __init__(
        self,
        job: JobConfig,
        slots: WorkerPool,
        membership: Membership,
        channels: ChannelServer,
        *,
        bus: EventBus,
        console: Console,
    ) -> None:
        self._job = job
        self._slots = slots
        self._membership = membership
        self._channels = channels
        self._console = console
        self._routes = RouteChecks(channels.send, on_known=self._routes_known)
        self._returns: dict[WorkerId, float] = {}
        self._num_cut_off: Counter[WorkerId] = Counter()
        self._is_stalled = False
        self._told = ""
        bus.subscribe(self._observe, "what looks at the routes of a job that stands")
        self._compatibility = Compatibility(console)
        self._clocks = ClockOffsets(channels.send, bus, console)

    def ready(self, slot: Slot, ready: Ready) -> None:
        """A worker waits to be admitted, or has its channel again."""
        if slot.ready is None:
            self._routes.check(slot, ready, time.monotonic())
            return
        self._slots.became_ready(slot, ready)
        if slot.admission is not None:  # its channel broke, perhaps before the first Admit came
            self._channels.send(slot.host, slot.admission)
        self._clocks.ask(slot.host)

    def _routes_known(self, slot: Slot, ready: Ready) -> None:
        if reason := self._why_not(slot, ready):
            self._slots.refuse(slot, reason)
        elif self._membership.has_started and (reason := self._routes.why_not(slot, self._others)):
            self._refuse_for_now(slot, reason)
        else:
            self._num_cut_off.pop(slot.worker, None)
            self._slots.became_ready(slot, ready)
            self._clocks.ask(slot.host)

    @property
    def _others(self) -> list[Slot]:
        """Those who take part or are about to, in the order of nodes.yaml."""
        return [slot for slot in self._slots.all if slot.is_available]

    @property
    def _members(self) -> list[Slot]:
        """Those who take part and are not just let go, in the order of nodes.yaml."""
        present = set(self._membership.present)
        stays = (slot for slot in self._slots.all if slot.worker not in self._returns)
        return [slot for slot in stays if slot in present]

    def _why_not(self, slot: Slot, ready: Ready) -> str | None:
        others = [other for other in self._slots.all if other is not slot]
        reason = conflict_in_words(slot, ready, others)
        if reason is None and self._membership.has_started:
            return self._compatibility.why_not(slot.worker, ready, others)
        return reason

    def _refuse_for_now(self, slot: Slot, reason: str) -> None:
        """Routes may be mended without a change of nodes.yaml: so it is tried again by itself."""
        seconds = doubled(RETURN_SECONDS, self._num_cut_off[slot.worker], MAX_RETURN_SECONDS)
        self._num_cut_off[slot.worker] += 1
        self._returns[slot.worker] = time.monotonic() + seconds
        words = f"{reason}; it is tried again in {seconds:.0f} s"
        self._slots.refuse(slot, words, may_return=True)

    def _part_members(self) -> None:
        """Of members that do not reach each other the smaller part goes."""
        members = self._members
        apart = self._routes.newly_apart(members)
        if apart is None:
            return
        if not apart:
            self._told = ""
        elif len(members) - len(apart) < self._job.min_np:
            words = f"members wait for a way to each other: {next(iter(apart.values()))}"
            if words != self._told:
                self._console.say(words)
            self._told = words
        else:
            for slot in members:
                if slot.worker in apart:
                    self._refuse_for_now(slot, apart[slot.worker])
                    if slot.process is not None:  # it waits in Gloo, which hears of nothing
                        slot.process.kill()
                    self._membership.lost(slot.host)

    def _observe(self, _at_unix_seconds: float, event: object) -> None:
        if isinstance(event, StallReported):
            self._is_stalled = event.is_stalled

    def answered(self, slot: Slot, answer: ClockTold | RouteTold) -> None:
        """A worker has said what its clock shows, or whether it reaches another one."""
        if isinstance(answer, ClockTold):
            self._clocks.told(slot.host, slot.worker, answer)
        else:
            self._routes.told(slot.host, answer, time.monotonic())

    def check_start(self) -> bool:
        """Before the workers that are ready become members.

        Returns:
            Whether all of them may; else some are refused just now, for their data or as they do
            not reach the others.

        Raises:
            JobError: They cannot train together.
            TryAgainError: Too few of them reach each other.
        """
        self._compatibility.check_start(self._slots.all)
        other_data = self._compatibility.other_data(self._slots.all)
        apart = self._routes.apart(s for s in self._others if s.worker not in other_data)
        num_left = len(self._slots.all) - len(other_data) - len(apart)
        if apart and num_left < self._job.min_np and not self._job.discover:
            raise TryAgainError(
                f"{num_left} workers reach each other, min_np is {self._job.min_np}: "
                f"{next(iter(apart.values()))}"
            )
        for slot in list(self._slots.all):
            if slot.worker in other_data:
                self._slots.refuse(slot, other_data[slot.worker])
            elif slot.worker in apart:
                self._refuse_for_now(slot, apart[slot.worker])
        return not other_data and not apart

    def look(self) -> None:
        """Ask for the time again, now and then, and see to the routes. Call it often."""
        for slot in self._slots.all:
            if slot.ready is not None:
                self._clocks.ask_again(slot.host)
        now_seconds = time.monotonic()
        self._routes.look(now_seconds)
        self._part_members()  # before all is tried again, and nothing known for that time
        unmet_seconds = self._membership.unmet_seconds
        if unmet_seconds > UNMET_SECONDS or (self._is_stalled and not unmet_seconds):
            self._routes.check_again(self._members, now_seconds)
        due = [worker for worker, at_seconds in self._returns.items() if now_seconds >= at_seconds]
        for worker in due:
            del self._returns[worker]
        if due:
            self._slots.readmit(due)

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
        self._routes.forget(host, time.monotonic())
        self._channels.cut(host)
