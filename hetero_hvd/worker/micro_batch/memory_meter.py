"""The memory that this worker computes in: the GPU's, or the host's."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import torch

from hetero_hvd.probes.machine.memory import MemoryUse, host_memory, reset_host_peak


def free_memory() -> None:
    """Give back what nobody uses, to the device or to the system."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # another libc keeps it
        ctypes.CDLL(None).malloc_trim(0)


def device_memory_bytes(device: torch.device) -> float:
    """All memory of a GPU; 0 on the CPU, where its size says nothing about the speed."""
    if device.type != "cuda":
        return 0.0
    return float(torch.cuda.get_device_properties(device).total_memory)


class MemoryMeter:
    """Peaks of the memory between two `restart`.

    On a GPU these are the bytes of tensors (`max_memory_allocated`): what the allocator keeps
    beside them it can use again. On the CPU it is the resident set.

    Args:
        device: Where the model is.
        node_limit_bytes: The most that the user allows; None = no such limit.
    """

    def __init__(self, device: torch.device, node_limit_bytes: int | None) -> None:
        self._device = device
        self._node_limit_bytes = node_limit_bytes

    def restart(self) -> None:
        """From now on only new peaks count."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # what the last size left would hide this one's peak
        reset_host_peak()

    def read(self) -> MemoryUse:
        """Look; tens of microseconds."""
        if self._device.type != "cuda":
            return host_memory(self._node_limit_bytes)
        used = torch.cuda.memory_allocated(self._device)
        free, _ = torch.cuda.mem_get_info(self._device)
        limit = free + torch.cuda.memory_reserved(self._device)
        return MemoryUse(
            used_bytes=used,
            peak_bytes=torch.cuda.max_memory_allocated(self._device),
            limit_bytes=min(limit, self._node_limit_bytes or limit),
        )
