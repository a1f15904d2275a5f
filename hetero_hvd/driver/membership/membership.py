"""Who of the ready workers is a member: the loop's side of Horovod's driver."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hetero_hvd.config import JobConfig
from hetero_hvd.driver.membership.horovod_driver import AdoptingDriver, horovod_environment
from hetero_hvd.driver.membership.rendezvous import Rendezvous
from hetero_hvd.driver.network.channel_server import ChannelServer
from hetero_hvd.driver.network.endpoints import Endpoints
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.exit_codes import EXIT_FAILED, EXIT_TERMINATED
from hetero_hvd.messages import Admit, MemberLost, ResetRequested, Stop
from hetero_hvd.run.tracking.run_tracker import RunTracker

REQUEST_SECONDS = 1.0
"""Between two requests to the workers for the same change of membership."""

QUIET_SECONDS, MAX_WAIT_SECONDS = 0.3, 2.0
"""Who come together are let in at once: wait until nobody new has come for a while. Where some only
leave, nothing is waited for: somebody may want their devices."""

PARTING_SECONDS = 0.5
"""After a member has left: its last data are with the others, wherever its news are not yet."""

LEAVE_SECONDS = 10.0
"""For a worker that was let go to end by itself."""

DYING_SECONDS = 0.05
"""Between two looks at whether the process of one that dies has ended."""


class Membership:
    """Lets workers in and out. Used in the loop's thread, but for what is called by Horovod.

    Args:
        job: Settings.
        slots: The workers.
        channels: The ways to them.
        endpoints: Where they reach us.
        tracker: Tells when a rendezvous is complete.
        on_over: Called when Horovod regards the job as over, with its reason if it has one.

    Attributes:
        rendezvous: The server where the members meet.
        hosts: Members of the newest membership, as Horovod hosts.
        has_started: Whether there has been one.
    """

    def __init__(
        self,
        job: JobConfig,
        *,
        slots: WorkerPool,
        channels: ChannelServer,
        endpoints: Endpoints,
        rendezvous: Rendezvous,
        tracker: RunTracker,
        on_over: Callable[[str | None], None],
    ) -> None:
        self.rendezvous = rendezvous
        self.hosts: set[str] = set()
        self._job = job
        self._slots = slots
        self._channels = channels
        self._endpoints = endpoints
        self._tracker = tracker
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._horovod: AdoptingDriver | None = None
        self._num_met_before = 0
        self._next_request_at_seconds = -math.inf
        self._wish: tuple[set[str], set[str]] = (set(), set())
        self._wished_at_seconds = self._changed_at_seconds = -math.inf
        self._began_at_seconds = math.inf
        self._voided: set[str] = set()
        rendezvous.follow(on_members=self._changed, on_return=self._returned)

    @property
    def has_started(self) -> bool:
        """Whether the workers that were ready first have been admitted."""
        return self._horovod is not None

    @property
    def present(self) -> list[Slot]:
        """The members that have neither ended nor left."""
        return [slot for host in self.hosts if (slot := self._find_present(host)) is not None]

    @property
    def unmet_seconds(self) -> float:
        """For how long the newest members have not got on with meeting; 0: they have met.

        Many of them need long for it: each asks for the addresses of each other one.
        """
        since_seconds = max(self._began_at_seconds, self.rendezvous.useful_at_seconds)
        return 0.0 if self._is_settled else max(0.0, time.monotonic() - since_seconds)

    async def start(self) -> None:
        """Make members of the workers that are ready; returns when Horovod has decided who."""
        self._horovod = AdoptingDriver(
            self.rendezvous,
            self._slots.available,
            min_np=self._job.min_np,
            max_np=self._job.max_np,
            num_held=self._slots.num_held,
            elastic_timeout_seconds=self._job.elastic_timeout_seconds,
            on_change=self._change_wanted,
            on_stop=self._stopped,
        )
        self.rendezvous.attach(self._horovod)
        self._horovod.hosts_changed()
        await asyncio.to_thread(self._horovod.start_training, self._adopt)

    async def start_anew(self) -> None:
        """All members are gone: forget them, so that `start` can be called again."""
        await self.close()
        self._horovod = None
        self.hosts = set()

    def lost(self, host: str, *, is_orderly: bool = False) -> None:
        """A member is gone or out of reach: its peers must not wait for it until Gloo gives up.

        Who is on the way into the next rendezvous already is left alone, and so is everybody if it
        has left in order and the others had met it: it has done its part in all collectives.
        """
        if host not in self.hosts:
            return
        self.rendezvous.invalidate(host)
        rendezvous_id = self._tracker.rendezvous_id if self._is_settled else 0
        if not (is_orderly and rendezvous_id):
            self._tell_lost(host, rendezvous_id)

    def left(self, host: str) -> None:
        """A member has left, and ended its connections: the others learn from these at once.

        The driver's word follows a moment later, for those whom the end of the connections reaches
        from neighbour to neighbour only. Before that it could overtake the last data of the step
        under way, and leave a member a step behind the one that has left.
        """
        if host in self.hosts and self._is_settled:
            self.rendezvous.invalidate(host)
            rendezvous_id = self._tracker.rendezvous_id
            self._loop.call_later(PARTING_SECONDS, self._tell_lost, host, rendezvous_id)
        else:
            self.lost(host)

    def _tell_lost(self, host: str, rendezvous_id: int) -> None:
        if host not in self.hosts:  # the others are in another membership meanwhile, with newcomers
            return
        for other in self.hosts - {host} - self._voided - self.rendezvous.waiting:
            if not rendezvous_id:
                self._voided.add(other)  # once is enough: it comes back by itself
            self._channels.send(other, MemberLost(host=host, rendezvous_id=rendezvous_id))

    def hosts_changed(self) -> None:
        """A worker became ready or went."""
        if self._horovod is not None:
            self._horovod.hosts_changed()

    async def close(self) -> None:
        """End Horovod's threads; workers that ask for a rank hear that they are no members."""
        if self._horovod is not None:
            await asyncio.to_thread(self._horovod.close)

    def _find_present(self, host: str) -> Slot | None:
        slot = self._slots.find(host)
        return None if slot is None or slot.left.is_set() else slot

    @property
    def _is_settled(self) -> bool:
        """Whether the members of the newest membership have met."""
        return self._tracker.summary.num_memberships > self._num_met_before

    def _returned(self, host: str) -> None:
        """A member enters the next rendezvous; if it has not met the others, they wait for it."""
        self.release_ended()
        if not self._is_settled:
            self.lost(host)

    def release_ended(self) -> None:
        """Members still train: they do not wait for the process of one whose script has ended.

        Nor for one that has finished the epochs which they are still in. Where the scripts of all
        end nobody comes here, and each process has the time that it needs.
        """
        present = self.present
        waiting = [slot for slot in present if slot.host in self.rendezvous.waiting]
        ended = [
            slot
            for slot in present
            if slot.last_word is not None or any(slot.is_through(other) for other in waiting)
        ]
        for slot in ended if waiting else ():
            slot.left.set()
            self._slots.changed()
            self.lost(slot.host, is_orderly=True)

    def _dies(self, slot: Slot, host: str) -> None:
        """The kernel frees a member's memory: the others do not wait for the end of its process.

        Where nobody goes on, that says how the job ends; who has said a last word is expected to
        end. A program that has started the member may live on, and start another one.

        Args:
            slot: The member's.
            host: Its name as a Horovod host.
        """
        others = [s for s in self.present if s is not slot and s.last_word is None]
        process = slot.process
        if not slot.runs_as(host) or process is None or slot.last_word is not None or not others:
            return
        self._loop.call_later(LEAVE_SECONDS, process.terminate)
        slot.left.set()
        self.rendezvous.gone(slot.host)
        self._slots.changed()
        self.lost(slot.host)

    def _change_wanted(self, joining: set[str], leaving: set[str]) -> None:
        """Called in a thread of Horovod's."""
        self._loop.call_soon_threadsafe(self._request_reset, joining, leaving)

    def _stopped(self, reason: str | None) -> None:
        """Called in a thread of Horovod's."""
        self._loop.call_soon_threadsafe(self._tell_over, reason)

    def _tell_over(self, reason: str | None) -> None:
        """How those have ended who have died, and whether they start again, is known then."""
        if any(s.left.is_set() and s.process and s.last_word is None for s in self._slots.all):
            self._loop.call_later(DYING_SECONDS, self._tell_over, reason)
            return
        self._on_over(reason)

    def _adopt(self, place: Any) -> int:  # noqa: ANN401
        """Called in a thread of Horovod's: admit a worker, wait for its end."""
        return asyncio.run_coroutine_threadsafe(self._admit(place), self._loop).result()

    async def _admit(self, place: Any) -> int:  # noqa: ANN401
        slot = self._slots.find(place.hostname)
        if slot is None or slot.process is None or slot.ready is None:
            return 1  # it died between its discovery and now
        endpoint = await self._endpoints.towards(slot.node)
        port = await self.rendezvous.listen(endpoint.address, slot.host)
        environment = horovod_environment(
            place,
            rendezvous=(endpoint.address, port),
            interface=slot.ready.interface,
            gloo_timeout_seconds=self._job.gloo_timeout_seconds,
        )
        slot.output.tell_death(partial(self._dies, slot, slot.host))
        slot.admission = Admit(environment=environment, rendezvous_id=self._tracker.rendezvous_id)
        self._channels.send(slot.host, slot.admission)  # sent again if the channel is broken now
        exited, left = slot.process.exited, asyncio.create_task(slot.left.wait())
        await asyncio.wait((exited, left), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not exited.done():
            return EXIT_TERMINATED
        # 0 would tell Horovod that the whole job is done (registration.py:142).
        record = self._tracker.summary.workers[slot.worker]
        is_done = record.finished is not None and record.script_ended is not None
        return exited.result() or EXIT_FAILED * (not is_done)

    def _changed(self, hosts: set[str]) -> None:
        """There is a new membership; the workers are not in it yet."""
        self.hosts = hosts
        self._voided = set()
        self._wish = (set(), set())
        self._num_met_before = self._tracker.summary.num_memberships
        self._began_at_seconds = time.monotonic()
        for slot in self._slots.without(hosts):
            slot.holds_state = False
            self._channels.send(slot.host, Stop(reason="this node is no longer in nodes.yaml"))
            if slot.process is not None:
                self._loop.call_later(LEAVE_SECONDS, slot.process.terminate)

    def _request_reset(self, joining: set[str], leaving: set[str]) -> None:
        """Ask the members for a reset; not during one, nor if a fault brings it about anyway."""
        now = time.monotonic()
        is_fault = any(self._find_present(host) is None for host in leaving)
        if (joining, leaving) != self._wish:
            is_new = not any(self._wish)
            self._wish = (joining, leaving)
            self._changed_at_seconds = now
            self._wished_at_seconds = now if is_new else self._wished_at_seconds
        is_quiet = not joining or now >= min(
            self._changed_at_seconds + QUIET_SECONDS, self._wished_at_seconds + MAX_WAIT_SECONDS
        )
        if is_fault or not self._is_settled or not is_quiet or now < self._next_request_at_seconds:
            return
        self._next_request_at_seconds = now + REQUEST_SECONDS
        words = [f"{host} joins" for host in joining] + [f"{host} leaves" for host in leaving]
        away = tuple(s.worker for host in sorted(leaving) if (s := self._find_present(host)))
        for host in self.hosts:
            request = ResetRequested(reason=", ".join(sorted(words)), leaving=away)
            self._channels.send(host, request)
