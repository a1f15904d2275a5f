"""The memory that this worker computes in: the GPU's, or the host's."""

from __future__ import annotations

import ctypes
import gc
import math
import time
from contextlib import suppress
from dataclasses import replace

import torch

from hetero_hvd.probes.machine.memory import (
    MemoryUse,
    host_memory,
    host_memory_again,
    reset_host_peak,
)
from hetero_hvd.worker import accelerator

LIMIT_SECONDS = 1.0
"""Between two looks at what the host's memory could still give: ten files of the kernel's."""


def free_memory() -> None:
    """Give back what nobody uses, to the device or to the system."""
    gc.collect()
    accelerator.empty_cache()
    with suppress(OSError, AttributeError):  # another libc keeps it
        ctypes.CDLL(None).malloc_trim(0)


def device_memory_bytes(device: torch.device) -> float:
    """All memory of a GPU; 0 on the CPU, where its size says nothing about the speed."""
    if not accelerator.is_accelerator(device):
        return 0.0
    return float(accelerator.total_memory_bytes(device))


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
        self._last: MemoryUse | None = None
        self._looked_at = -math.inf

    def restart(self) -> None:
        """From now on only new peaks count."""
        if accelerator.is_accelerator(self._device):
            accelerator.restart_peak(self._device)
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # what the last size left would hide this one's peak
        reset_host_peak()

    def look(self) -> None:
        """See how much the host could still give, if that is due; half a millisecond."""
        if not accelerator.is_accelerator(self._device) and self._is_due(LIMIT_SECONDS):
            self._look()

    def read(self) -> MemoryUse:
        """Look; tens of microseconds."""
        if not accelerator.is_accelerator(self._device):
            return self._read_host()
        use = accelerator.memory_use(self._device)
        limit_bytes = min(use.limit_bytes, self._node_limit_bytes or use.limit_bytes)
        return replace(use, limit_bytes=limit_bytes)

    def _read_host(self) -> MemoryUse:
        if self._last is None or self._is_due(2 * LIMIT_SECONDS):  # nobody has called `look`
            return self._look()
        return host_memory_again(self._last, self._node_limit_bytes)

    def _is_due(self, seconds: float) -> bool:
        return time.monotonic() >= self._looked_at + seconds

    def _look(self) -> MemoryUse:
        self._looked_at = time.monotonic()
        self._last = host_memory(self._node_limit_bytes)
        return self._last
