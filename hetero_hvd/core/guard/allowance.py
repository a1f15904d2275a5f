"""How many devices may be drained: a hot room is an alert, not a shutdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

DRAINED_PART = 4
"""Of the devices one in so many may be drained at once, and at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInUse:
    """A device as the job uses it.

    Attributes:
        key: Which.
        num_ready: Its workers that train or could.
        num_wanted: Its workers that do, or may soon: those that start are among them.
        is_drained: Whether its workers were let go.
        should_drain: Whether they should be.
        is_lasting: Whether that does not end by itself.
    """

    key: str
    num_ready: int = 0
    num_wanted: int = 0
    is_drained: bool = False
    should_drain: bool = False
    is_lasting: bool = False


@dataclass(slots=True)
class Allowance:
    """What may be done now.

    Attributes:
        drain: Devices whose workers may go.
        refused: Devices whose workers should go, and why they must not.
        give_back: Devices that are drained and are needed.
    """

    drain: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    give_back: list[str] = field(default_factory=list)


def allowance(devices: Sequence[DeviceInUse], *, min_np: int) -> Allowance:
    """Which of the ailing devices may be drained.

    Never more than a quarter of all at once, and never so many that fewer than `min_np` workers
    would be left. Where workers start that would be enough, nothing is decided yet. If too few are
    left because others were lost, devices that could come back by themselves do so at once.

    Args:
        devices: All of the job; who comes first is drained first.
        min_np: Fewest workers.
    """
    found = Allowance()
    num_drained = sum(device.is_drained for device in devices)
    num_allowed = max(1, len(devices) // DRAINED_PART)
    staying = [device for device in devices if not device.is_drained]
    num_ready = sum(device.num_ready for device in staying)
    num_wanted = sum(device.num_wanted for device in staying)
    for device in staying:
        if not device.should_drain:
            continue
        if num_wanted - device.num_wanted < min_np:
            num_left = num_wanted - device.num_wanted
            found.refused[device.key] = f"{num_left} workers would be left, min_np is {min_np}"
        elif num_drained >= num_allowed:
            drained = f"{num_drained} of {len(devices)} devices {_are(num_drained)} drained"
            found.refused[device.key] = f"{drained}, and no more than a quarter may be at once"
        elif num_ready - device.num_ready >= min_np:
            found.drain.append(device.key)
            num_drained += 1
            num_ready -= device.num_ready
            num_wanted -= device.num_wanted
    if num_wanted < min_np:
        found.give_back = [d.key for d in devices if d.is_drained and not d.is_lasting]
    return found


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
