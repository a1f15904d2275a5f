"""What the device of a worker is called among all jobs of its machine: no two of them have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero_hvd.core.digits import whole_number

PCI_ORDER = "PCI_BUS_ID"


def leased_names(
    gpus: Sequence[str], environment: Mapping[str, str], *, slot: str, is_emulated: bool
) -> list[str]:
    """The UUID of each GPU, where NVML knows it; without a GPU the slot.

    CUDA numbers GPUs of several models by their speed unless it is told otherwise, NVML by their
    place: there an index is only known to be the same as another job's index.

    Args:
        gpus: As CUDA_VISIBLE_DEVICES names them; NVML is asked only if there are some.
        environment: Of the worker.
        slot: What a CPU slot is called; empty: it is not leased.
        is_emulated: Whether nodes with other slots may have the same GPU.
    """
    if not gpus:
        return [f"slot {slot}"] if slot else []
    from hetero_hvd.probes.gpu.nvml import identities  # noqa: PLC0415 - most nodes have none

    found = identities()
    is_by_place = environment.get("CUDA_DEVICE_ORDER") == PCI_ORDER
    is_by_place |= len({model for model, _ in found}) == 1
    names = []
    for name in gpus:
        index = whole_number(name)
        if index is None:  # the beginning of a UUID is enough for CUDA
            names.append(next((uuid for _, uuid in found if uuid.startswith(name)), name))
        elif is_by_place and index < len(found):
            names.append(found[index][1])
        else:
            names.append(f"GPU {index}")
    return [f"{name} as {slot}" for name in names] if is_emulated else names
