"""Devices that are alike for every job: counted, not named, so that a plan weighs few choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_hvd.core.queue.devices import DevicePool, QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceClass:
    """Devices of one pool, kind, size and, where jobs ask for nodes, node.

    Attributes:
        devices: Those that may be leased, by name.
        relative_speed: See `QueueDevice`.
    """

    pool: str
    kind: str
    node: str
    memory_bytes: int
    is_guest: bool
    relative_speed: float
    devices: tuple[QueueDevice, ...]


@dataclass(frozen=True, slots=True)
class ClassSpeeds:
    """What the classes are to one job. Speeds are relative to the fastest kind that it may use.

    Attributes:
        speeds: Each class's speed; 0: the job may not use it.
        is_own: Whether a class is of the job's own pool, and not lent to it.
        communication: See `set_rate`, of speeds instead of rates.
        best_rate: Of the fastest, in the job's units per second; 0: it can run nowhere.
    """

    speeds: tuple[float, ...]
    is_own: tuple[bool, ...]
    communication: tuple[float, ...]
    best_rate: float


class ClassTable:
    """The classes of all devices that may be leased now.

    Args:
        devices: All of the cluster.
        pools: Name to pool.
        by_node: Whether a job asks for a node by name.
    """

    def __init__(
        self, devices: Sequence[QueueDevice], pools: Mapping[str, DevicePool], *, by_node: bool
    ) -> None:
        groups: dict[tuple[str, str, str, int, bool, float], list[QueueDevice]] = {}
        for each in devices:
            if each.condition == "ready":
                node = each.node if by_node else ""
                key = (each.pool, each.kind, node, each.memory_bytes, each.is_guest)
                groups.setdefault((*key, each.relative_speed), []).append(each)
        self.classes = tuple(
            DeviceClass(
                pool=pool,
                kind=kind,
                node=node,
                memory_bytes=memory,
                is_guest=is_guest,
                relative_speed=speed,
                devices=tuple(found),
            )
            for (pool, kind, node, memory, is_guest, speed), found in groups.items()
        )
        self.class_of = {
            each.device: index for index, group in enumerate(self.classes) for each in group.devices
        }
        self.kinds = tuple(group.kind for group in self.classes)
        self.total_speed = sum(len(g.devices) * g.relative_speed for g in self.classes)
        self._pools = pools
        self._speeds: dict[str, tuple[JobRequest, ClassSpeeds]] = {}

    def speeds_for(self, request: JobRequest) -> ClassSpeeds:
        """What the classes are to a job; computed once for each."""
        known = self._speeds.get(request.job)
        if known is None or known[0] is not request:
            known = self._speeds[request.job] = (request, self._speeds_for(request))
        return known[1]

    def forget(self, job: str) -> None:
        """Keep nothing for a job that has ended."""
        self._speeds.pop(job, None)

    def _speeds_for(self, request: JobRequest) -> ClassSpeeds:
        rates = [self._rate(request, group) for group in self.classes]
        best = max(rates, default=0.0)
        scale = 1.0 / best if best else 0.0
        return ClassSpeeds(
            tuple(rate * scale for rate in rates),
            tuple(group.pool == request.pool for group in self.classes),
            tuple(
                request.communication_seconds.get(group.kind, 0.0) * best for group in self.classes
            ),
            best,
        )

    def _lends(self, pool: str) -> bool:
        return pool not in self._pools or self._pools[pool].lends

    def _rate(self, request: JobRequest, group: DeviceClass) -> float:
        """Of one device, in the job's units per second; 0: it may not be used.

        What cannot shrink uses its own pool only, and no guest: it could not be taken back.
        """
        if group.pool != request.pool and not (request.is_shrinkable and self._lends(group.pool)):
            return 0.0
        if group.is_guest and not request.is_shrinkable:
            return 0.0
        for need in request.needs:
            if not need.is_met_by(
                memory_bytes=group.memory_bytes, kind=group.kind, node=group.devices[0].node
            ):
                return 0.0
        if group.kind in request.rates:
            return request.rates[group.kind]
        return group.relative_speed * self._scale(request)

    def _scale(self, request: JobRequest) -> float:
        """Units per second of a device of relative speed 1, from the kinds that are measured."""
        ratios = [
            request.rates[group.kind] / group.relative_speed
            for group in self.classes
            if request.rates.get(group.kind, 0.0) > 0
        ]
        return sum(ratios) / len(ratios) if ratios else 1.0
