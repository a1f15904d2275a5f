"""The guard: hears of the nodes' samples, and lets the workers of ailing devices go and come back.

What is decided is decided in `core.guard`; here it is done, and told in one line each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Literal

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.core.guard.allowance import Allowance, allowance
from hetero_hvd.core.guard.device_health import DeviceEpisode, DeviceHealth, EpisodeChange, Kind
from hetero_hvd.core.guard.limits import GuardLimits
from hetero_hvd.core.step_table import Observed
from hetero_hvd.driver.guard.guarded_device import (
    PROCESSORS,
    GuardedDevice,
    device_of,
    devices_of,
)
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.messages import DeviceSample, GuardReported, NodeSampled, WorkerId
from hetero_hvd.run.event_bus import EventBus

What = Literal["drained", "refused", "alerted", "returned", "ended", "silent"]

NO_RESTART = "nobody is started again in this loop over epochs"
UNHEARD_SECONDS = 30.0
"""A worker that could train for so long, of whose device nobody has told, is not guarded."""

NO_GUARD = "there is no guard any more"


class DeviceGuard:
    """Observes the bus. Used in the loop's thread.

    Args:
        cluster: The settings; see `follow`.
        slots: The workers.
        bus: Is told of all that is done.
        say: Tells people.
        tell: Called with the first report of each episode.
        clock: Monotonic.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        slots: WorkerPool,
        bus: EventBus,
        *,
        say: Callable[[str], None],
        tell: Callable[[GuardReported], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._bus = bus
        self._say = say
        self._tell = tell
        self._clock = clock
        self._interval_seconds = float(cluster.job.sample_seconds)
        self._devices: dict[str, GuardedDevice] = {}
        self._samples: dict[str, NodeSampled] = {}
        self._places: dict[WorkerId, str] = {}
        self._unheard: dict[WorkerId, float] = {}
        self._limits: GuardLimits | None = None
        self._first_min_np = cluster.job.min_np
        self.follow(cluster)

    def follow(self, cluster: ClusterConfig) -> None:
        """Take the settings as they are now; without a guard, all that are away come back."""
        # Horovod's driver keeps to what was so at the start, the pool to what is so now.
        self._min_np = max(self._first_min_np, cluster.job.min_np)
        limits = cluster.guard.limits if cluster.guard is not None else None
        if limits == self._limits:
            return
        self._limits = limits
        for device in self._devices.values():
            if limits is not None:
                device.health.follow(limits)
            elif device.drained and self._slots.may_restart:
                self._give_back(device, NO_GUARD)
            elif device.is_told:
                self._end(device, NO_GUARD)
        if limits is None:
            self._devices.clear()

    def away(self) -> Iterable[NodeConfig]:
        """Nodes with a worker that may come back: they are to be heard of."""
        for device in self._devices.values():
            yield from device.drained.values()

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take a sample; an observer of the bus."""
        if self._limits is None or not isinstance(event, NodeSampled):
            return
        now_seconds = self._clock()
        self._samples[event.node] = event
        for key, sample in devices_of(event).items():
            device = self._devices.get(key) or self._new_device(key, sample, event.node)
            if device.node != event.node:
                if not device.health.is_silent(now_seconds):
                    continue  # two that tell of one device, one a moment later, would count twice
                device.node = event.node
            self._note(device, device.health.read(sample, now_seconds))
            device.is_silent = False

    def look(self) -> None:
        """Do what is due. Call it often."""
        if self._limits is None:
            return
        now_seconds = self._clock()
        self._find_users(now_seconds)
        for device in self._devices.values():
            self._note(device, device.health.advance(now_seconds))
            if device.is_told and not device.is_used:
                device.health.forget()
                device.fresh.clear()
                self._end(device, "is used by no worker any more")
            if device.is_used and device.health.is_silent(now_seconds) and not device.is_silent:
                device.is_silent = True
                self._report(
                    device, "silent", "is not heard of any more: everything stays as it is"
                )
        used = [device for device in self._devices.values() if device.is_used]
        for device in used:
            self._take_back(device)
        found = self._allowance(used)
        for device in used:
            self._act(device, found)

    def _new_device(self, key: str, sample: DeviceSample, node: str) -> GuardedDevice:
        assert self._limits is not None  # noqa: S101 - asked by the caller
        kind: Kind = "processors" if sample.name == PROCESSORS else "GPU"
        name = PROCESSORS if kind == "processors" else f"GPU {sample.index}"
        health = DeviceHealth(kind, self._limits, interval_seconds=self._interval_seconds)
        device = GuardedDevice(key=key, name=name, uuid=sample.uuid, node=node, health=health)
        self._devices[key] = device
        return device

    def _note(self, device: GuardedDevice, changes: Iterable[EpisodeChange]) -> None:
        device.fresh += [episode for episode, has_begun in changes if has_begun]

    def _find_users(self, now_seconds: float) -> None:
        """Who uses which device now; a worker that begins has the one that it had before."""
        for device in self._devices.values():
            device.slots = []
            for worker in [w for w in device.drained if not self._slots.is_withdrawn(w)]:
                del device.drained[worker]  # nodes.yaml has changed, or the user has drained it too
                if any(s.worker == worker and s.is_wanted for s in self._slots.all):
                    self._try_again(device, worker)
        for slot in self._slots.all:
            sample = self._samples.get(slot.worker.node)
            key = device_of(slot, sample) if sample is not None else None
            key = key or self._places.get(slot.worker)
            if key in self._devices and slot.is_wanted:
                self._places[slot.worker] = key
                self._devices[key].slots.append(slot)
                self._unheard.pop(slot.worker, None)
            elif slot.is_available:
                self._miss(slot.worker, now_seconds)

    def _miss(self, worker: WorkerId, now_seconds: float) -> None:
        """Nobody has told of its device yet; said once."""
        since_seconds = self._unheard.setdefault(worker, now_seconds)
        if now_seconds - since_seconds > max(UNHEARD_SECONDS, 3 * self._interval_seconds):
            self._unheard[worker] = math.inf
            self._say(f"guard: nothing is heard of the device of {worker}: it is not guarded")

    def _try_again(self, device: GuardedDevice, worker: WorkerId) -> None:
        device.health.forget()
        device.fresh.clear()
        device.is_told = False
        words = f"is tried again: the entry of {worker.node} has changed"
        self._report(device, "returned", words, workers=(worker,))

    def _take_back(self, device: GuardedDevice) -> None:
        """What is over is told, and who is away because of it is started again."""
        device.fresh = [one for one in device.fresh if one in device.health.episodes]
        if device.drained and not device.drain_episodes and self._slots.may_restart:
            self._give_back(device, "is well again")
            return
        is_well = not device.health.episodes
        if (device.is_told and is_well) or (device.refused and not device.drain_episodes):
            words = "is well again" if is_well else "need not be drained now"
            self._end(device, f"{words}, but {NO_RESTART}" if device.drained else words)

    def _end(self, device: GuardedDevice, words: str) -> None:
        """What was told of it is over; who is away stays so."""
        device.is_told = bool(device.health.episodes) and self._limits is not None
        device.refused = ""
        self._report(device, "ended", words)

    def _give_back(self, device: GuardedDevice, why: str) -> None:
        workers = tuple(sorted(device.drained))
        device.drained.clear()
        device.is_told = bool(device.health.episodes)
        self._slots.readmit(workers)
        self._report(device, "returned", f"{why}: {_names(workers)} may come back", workers=workers)

    def _allowance(self, used: Iterable[GuardedDevice]) -> Allowance:
        """The worst first: what will not pass, errors, then whatever takes time."""
        devices = sorted(used, key=lambda one: (not one.is_lasting, not _has_error(one)))
        if not self._slots.may_restart:
            ill = [one for one in devices if one.drain_episodes and not one.drained]
            return Allowance(refused={one.key: NO_RESTART for one in ill})
        return allowance([device.in_use() for device in devices], min_np=self._min_np)

    def _act(self, device: GuardedDevice, found: Allowance) -> None:
        if device.key in found.give_back:
            device.refused = "too few workers would be left"
            self._give_back(device, "is needed, as too few workers are left")
        elif device.key in found.drain:
            self._drain(device)
        elif device.key in found.refused and not (device.refused and not _drains(device.fresh)):
            why = f"should leave, but {found.refused[device.key]}"
            device.refused = found.refused[device.key]
            self._tell_fresh(device, "refused", f"{_names(device.workers)} {why}")
        elif device.drained and _drains(device.fresh):
            self._tell_fresh(device, "drained", _back(device))
        alerts = [episode for episode in device.fresh if episode.reply == "alert"]
        for episode in alerts:
            device.fresh.remove(episode)
            device.is_told = True
            self._report(device, "alerted", episode.words, episode=episode, is_new=True)

    def _drain(self, device: GuardedDevice) -> None:
        reason = f"{device.called(device.workers)} {device.drain_episodes[0].words}"
        leaving = device.slots
        device.drained |= {slot.worker: slot.node for slot in leaving}
        device.refused = ""
        self._tell_fresh(device, "drained", f"{_names(device.workers)} leaves; {_back(device)}")
        self._slots.withdraw(leaving, reason, "is drained by the guard")

    def _tell_fresh(self, device: GuardedDevice, what: What, then: str) -> None:
        """Each episode that has just begun, or else the one that goes on."""
        fresh = _drains(device.fresh)
        device.fresh = [episode for episode in device.fresh if episode not in fresh]
        device.is_told = True
        for episode in fresh or device.drain_episodes[:1]:
            words = f"{episode.words}: {then}"
            self._report(device, what, words, episode=episode, is_new=episode in fresh)

    def _report(
        self,
        device: GuardedDevice,
        what: What,
        words: str,
        *,
        episode: DeviceEpisode | None = None,
        is_new: bool = False,
        workers: tuple[WorkerId, ...] = (),
    ) -> None:
        devices = self._devices.values()
        workers = workers or device.workers
        event = GuardReported(
            what=what,
            node=workers[0].node if workers else device.node,
            device=device.name,
            uuid=device.uuid,
            reason=episode.reason if episode is not None else "",
            words=f"{device.called(workers)} {words}",
            workers=workers,
            is_new=is_new,
            num_drained=sum(bool(one.drained) for one in devices),
            num_refused=sum(bool(one.refused) for one in devices),
            is_lasting=device.is_lasting,
        )
        self._say(f"guard: {event.words}")
        self._bus.publish(event)
        if is_new:
            self._tell(event)


def _drains(episodes: Iterable[DeviceEpisode]) -> list[DeviceEpisode]:
    return [episode for episode in episodes if episode.reply == "drain"]


def _has_error(device: GuardedDevice) -> bool:
    return any(episode.reason in ("xid", "ecc") for episode in device.drain_episodes)


def _names(workers: Iterable[WorkerId]) -> str:
    return ", ".join(map(str, workers))


def _back(device: GuardedDevice) -> str:
    if device.is_lasting:
        return "it stays away until its entry in nodes.yaml changes"
    return "it comes back when the device is well"
