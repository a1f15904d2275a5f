"""Which machine and which GPU a worker is really on, whatever nodes.yaml and adverts call them."""

from __future__ import annotations

from collections.abc import Iterable

from hetero_hvd.driver.workers.slot import Slot
from hetero_hvd.messages import Ready


def conflict_in_words(slot: Slot, ready: Ready, others: Iterable[Slot]) -> str | None:
    """Why a worker must not run where it is: another one has its GPU. None if it may.

    Two names, two addresses, or a container and its host can lead to one GPU; its UUID is the same.
    Nodes that are emulated may share one: they are there to try things out.

    Args:
        slot: Of the worker.
        ready: What it says of itself.
        others: The other slots; those that leave do not count.
    """
    for other in others:
        if other.ready is None or not other.is_wanted or not ready.device_uuid:
            continue
        is_trial = slot.node.emulate is not None and other.node.emulate is not None
        if other.ready.device_uuid == ready.device_uuid and not is_trial:
            return f"{other.worker} has its GPU, {ready.device_uuid}"
    return None


def machines_of(slots: Iterable[Slot]) -> dict[str, str]:
    """Nodes whose workers have said on which machine they are: name to its identity."""
    return {
        slot.worker.node: slot.ready.machine_id
        for slot in slots
        if slot.ready is not None and slot.ready.machine_id
    }
