"""A device of the job: who uses it, how well it is, and what was done about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hetero_hvd.config import NodeConfig
from hetero_hvd.core.guard.allowance import DeviceInUse
from hetero_hvd.core.guard.device_health import DeviceEpisode, DeviceHealth
from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.messages import DeviceSample, NodeSampled, WorkerId

PROCESSORS = "processors"


@dataclass(eq=False, kw_only=True)
class GuardedDevice:
    """A GPU, or the processors of a machine.

    Attributes:
        key: Identity.
        name: For people.
        uuid: Of a GPU.
        node: Whose samples tell of it; several nodes may be one machine.
        health: How well it is.
        slots: Whose workers use it, or will.
        drained: The workers that were let go, with the entry of their node.
        fresh: Episodes that have begun and were not told yet.
        is_told: Whether an alert or a refusal is to be told as over.
        refused: Why its workers stay although they should go; empty: they need not, or are gone.
        is_silent: Whether it was told that it is not heard of.
    """

    key: str
    name: str
    uuid: str
    node: str
    health: DeviceHealth
    slots: list[Slot] = field(default_factory=list)
    drained: dict[WorkerId, NodeConfig] = field(default_factory=dict)
    fresh: list[DeviceEpisode] = field(default_factory=list)
    is_told: bool = False
    refused: str = ""
    is_silent: bool = False

    @property
    def is_used(self) -> bool:
        """Whether it matters to the job."""
        return bool(self.slots or self.drained)

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Who uses it, or would."""
        return tuple(sorted({slot.worker for slot in self.slots} | self.drained.keys()))

    @property
    def drain_episodes(self) -> list[DeviceEpisode]:
        """Those because of which its workers should go."""
        return [episode for episode in self.health.episodes if episode.reply == "drain"]

    @property
    def is_lasting(self) -> bool:
        """Whether it does not become well by itself."""
        return any(episode.is_lasting for episode in self.health.episodes)

    def in_use(self) -> DeviceInUse:
        """What decides whether its workers may go."""
        return DeviceInUse(
            key=self.key,
            num_ready=sum(slot.is_available for slot in self.slots),
            num_wanted=len(self.slots),
            is_drained=bool(self.drained) and not self.slots,
            should_drain=bool(self.drain_episodes),
            is_lasting=self.is_lasting,
        )

    def called(self, workers: Iterable[WorkerId]) -> str:
        """What it is called where these workers have it."""
        nodes = dict.fromkeys(worker.node for worker in workers) or [self.node]
        return f"{self.name} of {', '.join(nodes)}"


def devices_of(sample: NodeSampled) -> dict[str, DeviceSample]:
    """All devices that a sample tells of, by their identity; processors as one more of them."""
    machine = sample.machine_id or sample.node
    found = {_key(machine, gpu): gpu for gpu in sample.devices}
    processors = DeviceSample(
        name=PROCESSORS, temperature_celsius=sample.cpu_temperature_celsius, ecc_uncorrected=0.0
    )
    return found | {f"{machine}/{PROCESSORS}": processors}


def device_of(slot: Slot, sample: NodeSampled) -> str | None:
    """Identity of the device that a slot's worker computes on.

    Args:
        slot: Which.
        sample: The newest of its node.

    Returns:
        None: it is not known yet, or is none of those that are sampled.
    """
    machine = sample.machine_id or sample.node
    listed = slot.node.devices
    uuid = slot.ready.device_uuid if slot.ready is not None else ""
    wanted: str | int | None = uuid or (listed[slot.worker.slot] if listed else None)
    if wanted is not None:
        same = (gpu for gpu in sample.devices if wanted in (gpu.uuid, gpu.index))
        return next((_key(machine, gpu) for gpu in same), None)
    is_known = slot.ready is not None or listed == () or not sample.devices
    return f"{machine}/{PROCESSORS}" if is_known else None


def _key(machine: str, gpu: DeviceSample) -> str:
    return f"{machine}/{gpu.uuid or gpu.index}"
