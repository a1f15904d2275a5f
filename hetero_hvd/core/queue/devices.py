"""Devices and the pools that own them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceCondition = Literal["ready", "guest_busy", "failing", "lost"]
"""`ready`: may be leased. `guest_busy`: its owner uses it. `failing`: the guard took it out, for
heat or errors. `lost`: its node is away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDevice:
    """A device that can be leased.

    Attributes:
        device: Its name, unique in the cluster; a GPU's UUID, say.
        kind: Model of the device; those of one kind are equally fast.
        node: The machine that it is in.
        pool: The pool that owns it.
        memory_bytes: Of the device.
        relative_speed: > 0; of its kind, mean over the models measured, 1 for the fastest kind. It
            is the price of a second of it: who has an A100 for an hour has used more than who had
            a T4.
        is_guest: Its owner comes first: what cannot shrink is never put on it.
        condition: Whether it may be leased now.
    """

    device: str
    kind: str
    node: str
    pool: str = "default"
    memory_bytes: int = 0
    relative_speed: float = 1.0
    is_guest: bool = False
    condition: DeviceCondition = "ready"


@dataclass(frozen=True, kw_only=True)
class DevicePool:
    """Devices with one owner. The devices name their pool.

    Attributes:
        pool: Its name.
        lends: Whether other pools' jobs may use what its own jobs leave idle, until they want it.
        max_devices_per_user: The most that one user's jobs have of it while others want more;
            0: as many as there are. What is idle is lent beyond it, and taken back.
    """

    pool: str = "default"
    lends: bool = True
    max_devices_per_user: int = 0
