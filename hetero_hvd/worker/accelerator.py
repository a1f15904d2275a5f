"""The door to accelerators: all that is asked of a GPU goes through here, by torch's common names.

`torch.accelerator` tells which kind there is: `cuda` (also AMD's, by ROCm) or `xpu` (Intel's). What
torch has no common name for is in the module of that kind, such as `torch.cuda`, under the same
name in each. What only NVIDIA has is asked where `is_nvidia` holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from typing import Any, cast

import torch

from hetero_hvd.probes.machine.memory import MemoryUse
from hetero_hvd.probes.phase_clock import DeviceClock

LOOK_SECONDS = 0.00005
"""Between two looks at an event. torch's own wait spins: on a core that a CPU worker may need."""

OUT_OF_MEMORY_WORDS = (
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "HIP error: out of memory",
    "HIPBLAS_STATUS_ALLOC_FAILED",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
)
"""Of RuntimeErrors by the libraries of CUDA, ROCm and oneAPI, which do not ask torch for memory."""


def kind_here() -> str:
    """Kind of the accelerators that this process can use; empty if there are none."""
    return _kind_known_to(torch)


@cache
def _kind_known_to(package: Any) -> str:  # noqa: ANN401 - torch, which is asked several times a step
    here = package.accelerator
    found = here.current_accelerator() if here.is_available() else None
    return "" if found is None else found.type


def own_device(local_rank: int) -> torch.device:
    """The accelerator of the process with this rank on its host; without any: the CPU."""
    kind = kind_here()
    if not kind:
        return torch.device("cpu")
    return torch.device(kind, local_rank % torch.accelerator.device_count())


def is_accelerator(device: torch.device) -> bool:
    """Whether it has memory and a clock of its own."""
    return device.type != "cpu"


def is_nvidia(device: torch.device) -> bool:
    """Whether NVML and NVIDIA's environment variables say anything about it."""
    return device.type == "cuda" and torch.version.hip is None


def has_nccl(device: torch.device) -> bool:
    """Whether NCCL, or RCCL in its place, can add up tensors on it."""
    return device.type == "cuda"


def name_of(device: torch.device) -> str:
    """Model of an accelerator."""
    return str(_module(device.type).get_device_name(device))


def uuid_of(device: torch.device) -> str:
    """Identity of an accelerator, of NVIDIA's as NVML has it; empty where torch does not tell."""
    if not is_accelerator(device):
        return ""
    uuid = getattr(_module(device.type).get_device_properties(device), "uuid", None)
    maker = "GPU" if is_nvidia(device) else device.type
    return "" if uuid is None else f"{maker}-{uuid}"


def toolkit_version() -> str:
    """The version of CUDA, ROCm or oneAPI that torch was built for; empty for the CPU alone."""
    version = torch.version
    if version.hip:
        return f"ROCm {version.hip}"
    xpu = getattr(version, "xpu", None)
    return version.cuda or (f"oneAPI {xpu}" if xpu else "")


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was given; on the CPU there is no queue."""
    if is_accelerator(device):
        torch.accelerator.synchronize(device)


def total_memory_bytes(device: torch.device) -> int:
    """All memory of an accelerator."""
    return int(_module(device.type).get_device_properties(device).total_memory)


def restart_peak(device: torch.device) -> None:
    """From now on only new peaks count in `memory_use`."""
    _module(device.type).reset_peak_memory_stats(device)


def memory_use(device: torch.device) -> MemoryUse:
    """Bytes of tensors on an accelerator, and what the allocator and the device have left."""
    module = _module(device.type)
    reserved = module.memory_reserved(device)
    try:
        free, _ = module.mem_get_info(device)
    except RuntimeError:  # some drivers of Intel's do not tell: nobody else is taken to be there
        free = total_memory_bytes(device) - reserved
    return MemoryUse(
        used_bytes=module.memory_allocated(device),
        peak_bytes=module.max_memory_allocated(device),
        limit_bytes=free + reserved,
    )


def empty_cache() -> None:
    """Give back to the device what no tensor uses."""
    if kind := kind_here():
        _module(kind).empty_cache()


def seed_all(seed: int) -> None:
    """Seed the generators of all accelerators."""
    if kind := kind_here():
        _module(kind).manual_seed_all(seed)


def random_states() -> list[torch.Tensor]:
    """The state of each accelerator's generator; empty where none was used yet."""
    kind = kind_here()
    if not kind or not _module(kind).is_initialized():
        return []
    states: list[torch.Tensor] = _module(kind).get_rng_state_all()
    return states


def restore_random_states(states: Sequence[torch.Tensor]) -> None:
    """Put them back, if as many accelerators are here as there were."""
    if states and len(states) == torch.accelerator.device_count():
        _module(kind_here()).set_rng_state_all(states)


def generators() -> Sequence[torch.Generator]:
    """The global random generators of the accelerators, as far as there are any yet."""
    kind = kind_here()
    return _module(kind).default_generators if kind else ()


def profiler_activities() -> list[torch.profiler.ProfilerActivity]:
    """What torch's profiler can record here: the host, and the accelerator's kernels."""
    known = torch.profiler.ProfilerActivity
    own = getattr(known, kind_here().upper(), None)
    return [known.CPU] if own is None else [known.CPU, own]


def phase_ranges(device: torch.device) -> Callable[[str], AbstractContextManager[object]] | None:
    """Makes a range of a name that profilers from outside show (NVTX; on ROCm rocTX); None: none.

    Args:
        device: That computes.
    """
    if device.type != "cuda":
        return None
    return cast("Callable[[str], AbstractContextManager[object]]", torch.cuda.nvtx.range)


def numeric_facts() -> dict[str, Any]:
    """What results of an accelerator depend on, beside the script; empty without one."""
    kind = kind_here()
    if not kind:
        return {}
    return {
        "gpu": _module(kind).get_device_name(),
        "cuda": toolkit_version(),
        "cudnn": torch.backends.cudnn.version(),
        "tf32": torch.backends.cudnn.allow_tf32,
    }


class DeviceEvent:
    """A point in the queue of one accelerator, which need not be the current one.

    Args:
        device: Whose queue.
        is_timed: Whether `elapsed_time` will be asked.
    """

    def __init__(self, device: torch.device, *, is_timed: bool = False) -> None:
        self._device = device
        self._event = torch.Event(device=device, enable_timing=is_timed)

    def record(self) -> None:
        """Behind all that is in the device's current stream now."""
        self._event.record(torch.accelerator.current_stream(self._device))

    def query(self) -> bool:
        """Whether the device has passed it."""
        return bool(self._event.query())

    def elapsed_time(self, end: DeviceEvent) -> float:
        """Milliseconds from here to `end`, on the device's own clock; it must have passed both."""
        return float(self._event.elapsed_time(end._event))

    def wait(self) -> None:
        """Sleep until the device has passed it."""
        while not self._event.query():
            time.sleep(LOOK_SECONDS)


def device_clock(device: torch.device) -> DeviceClock | None:
    """Makes timed events of an accelerator; None: the host's clock is that of the device."""
    if not is_accelerator(device):
        return None
    return cast("DeviceClock", partial(DeviceEvent, device, is_timed=True))


class HostCopier:
    """Copies tensors of one accelerator to the host while the device goes on computing.

    The copies are in a stream of their own, which waits for what was queued before them, and in
    pinned memory: a device can write to no other by itself. torch keeps that memory for the next
    copy of the size, and knows when it is free.

    Args:
        device: Where the tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device)

    def copy(self, tensor: torch.Tensor) -> tuple[torch.Tensor, DeviceEvent]:
        """Begin to copy it.

        Returns:
            The copy, and the event after which it holds the tensor's values; not before.
        """
        host = self._room_for(tensor)
        copied = DeviceEvent(self._device)
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with self._stream:
            host.copy_(tensor, non_blocking=True)
            copied.record()
        tensor.record_stream(self._stream)
        return host, copied

    def _room_for(self, tensor: torch.Tensor) -> torch.Tensor:
        with suppress(RuntimeError):  # the system pins no more: slower, and the host waits
            return torch.empty_like(tensor, device="cpu", pin_memory=True)
        return torch.empty_like(tensor, device="cpu")


def _module(kind: str) -> Any:  # noqa: ANN401 - as different as torch.cuda and torch.xpu
    return torch.get_device_module(kind)
