"""NVIDIA GPUs, as the driver's own library (NVML) knows them: the one door to `pynvml`.

Makes no CUDA call: asking neither creates a context nor takes memory of the GPU. Each call opens
and closes the library, so that a driver can be reloaded between two of them. What a device, driver
or library does not support is None; what fails is None too and named in `problems`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hetero_hvd.probes.gpu.device_watch import DeviceWatch, WatchedDevice
from hetero_hvd.probes.gpu.gpu_records import GpuReport, GpuSample, GpuSurvey, MigDevice

KIB = 1024
_ALL_LINKS = 0xFFFFFFFF
"""Scope of a field value: the sum over a device's NVLinks."""

CLOCK_REASONS = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clock",
}
"""Bit to why the clock is not at its maximum."""

POLICIES = {
    0: "power",
    1: "thermal",
    2: "sync_boost",
    3: "board_limit",
    5: "reliability",
}
"""Policies that NVML counts the time of, in nanoseconds; without 4, low utilization: an idle GPU's
clock is low, and nobody holds it back."""


class _UnavailableError(Exception):
    """There is no NVML to ask; the message is None where that is normal: there is no driver."""

    def __init__(self, problem: str | None) -> None:
        super().__init__(problem)
        self.problem = problem


class _Device:
    """Asks one device, and remembers what failed."""

    def __init__(self, nvml: Any, handle: Any) -> None:  # noqa: ANN401 - pynvml has no types
        self.nvml = nvml
        self.handle = handle
        self.problems: list[str] = []

    def ask(self, function: str, *arguments: Any) -> Any:  # noqa: ANN401 - see above
        """The answer of `nvmlDevice<function>`; None where there is none."""
        unknown = (self.nvml.NVMLError_NotSupported, self.nvml.NVMLError_FunctionNotFound)
        try:
            return getattr(self.nvml, f"nvmlDevice{function}")(self.handle, *arguments)
        except unknown:
            return None
        except self.nvml.NVMLError as error:
            problem = f"{function}: {error}"
            if problem not in self.problems:
                self.problems.append(problem)
            return None

    def scaled(self, factor: float, function: str, *arguments: Any) -> float | None:  # noqa: ANN401
        """A number in our unit."""
        value = self.ask(function, *arguments)
        return None if value is None else value * factor

    def field(self, function: str, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - see above
        """One field of a structure."""
        return getattr(self.ask(function, *arguments), name, None)

    def yes(self, function: str) -> bool | None:
        """A mode that is on or off now."""
        modes = self.ask(function)  # now, and after the next restart
        return None if modes is None else bool(modes[0])


def survey() -> GpuSurvey:
    """The GPUs that this machine has."""
    try:
        with _library() as nvml:
            driver, cuda = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion()
            gpus, problems = [], []
            for index in range(nvml.nvmlDeviceGetCount()):
                try:
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    gpus.append(_report(index, _Device(nvml, handle)))
                except nvml.NVMLError as error:  # fallen off the bus: the others are still there
                    problems.append(f"GPU {index}: {error}")
            return GpuSurvey(
                driver_version=driver,
                cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
                gpus=tuple(gpus),
                problem="; ".join(problems) or None,
            )
    except _UnavailableError as error:
        return GpuSurvey(problem=error.problem)


def devices() -> list[GpuReport]:
    """The GPUs of this machine, by index; empty where the driver cannot be asked."""
    return list(survey().gpus)


def identities() -> list[tuple[str, str]]:
    """Model and UUID of each GPU, by index; empty where the driver cannot be asked."""
    try:
        with _library() as nvml:
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return [
                (str(nvml.nvmlDeviceGetName(each)), str(nvml.nvmlDeviceGetUUID(each)))
                for each in handles
            ]
    except _UnavailableError:
        return []


class GpuWatch:
    """Asks all GPUs again and again; the library stays open from one time to the next.

    A library that fails as a whole is closed, and opened anew the next time: its driver may have
    been loaded again.
    """

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._nvml: Any = None
        self._watch: DeviceWatch | None = None

    def take(self) -> tuple[list[tuple[GpuSample, WatchedDevice]], list[str]]:
        """What the GPUs do now, by index. Takes 40 ms for each: NVML measures PCIe so long.

        Returns:
            The samples, each with what only a watch can tell, and why others are missing; nothing
            where there is no driver.
        """
        try:
            if self._nvml is None:
                self._nvml = self._opened.enter_context(_library())
                self._watch = DeviceWatch(self._nvml)
            return self._take(self._nvml)
        except _UnavailableError as error:
            self.close()
            return [], [] if error.problem is None else [error.problem]

    def close(self) -> None:
        """Close the library."""
        self._nvml = self._watch = None
        opened, self._opened = self._opened, ExitStack()
        opened.close()

    def _take(self, nvml: Any) -> tuple[list[tuple[GpuSample, WatchedDevice]], list[str]]:  # noqa: ANN401
        samples, problems = [], []
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise _UnavailableError(f"NVML: {error}") from error
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found = _sample(index, _Device(nvml, handle))
            except nvml.NVMLError as error:  # fallen off the bus: the others are still there
                problems.append(f"GPU {index}: {error}")
                continue
            assert self._watch is not None  # noqa: S101 - it is there as long as the library
            samples.append((found, self._watch.look(found.uuid, handle)))
            problems += [f"GPU {index}: {problem}" for problem in found.problems]
        return samples, problems


@contextmanager
def computing_processes() -> Iterator[Callable[[], dict[str, set[int]]]]:
    """Ask all GPUs again and again who computes on them; the library stays open meanwhile.

    Yields:
        What gives UUID to the processes that compute there; empty where the driver cannot be asked.
        Windows and games, which a desktop always has, are left out.
    """
    try:
        with _library() as nvml:
            handles = list(map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())))
            found = {str(nvml.nvmlDeviceGetUUID(each)): _Device(nvml, each) for each in handles}
            yield lambda: {uuid: set(_processes(gpu, ["Compute"])) for uuid, gpu in found.items()}
    except _UnavailableError:
        yield dict


@contextmanager
def device_use(uuid: str) -> Iterator[Callable[[], float]]:
    """Ask one GPU again and again; the library stays open meanwhile.

    Args:
        uuid: Of the GPU, as NVML has it.

    Yields:
        What gives the part of the last second, or less, in which a kernel ran; NaN: not known.
    """
    try:
        with _library() as nvml:
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            found = next((h for h in handles if str(nvml.nvmlDeviceGetUUID(h)) == uuid), None)
            device = None if found is None else _Device(nvml, found)

            def ask() -> float:
                busy = device.field("GetUtilizationRates", "gpu") if device else None
                return math.nan if busy is None else busy / 100

            yield ask
    except _UnavailableError:
        yield lambda: math.nan


@contextmanager
def _library() -> Iterator[Any]:
    """The module `pynvml`, with the library open."""
    try:
        # Lazily: the doctor must work where it is not installed.
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        raise _UnavailableError("the package nvidia-ml-py is not installed") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:  # no driver was ever installed: no GPU to use
        raise _UnavailableError(None) from None
    except nvml.NVMLError as error:
        raise _UnavailableError(f"NVML: {error}") from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise _UnavailableError(f"NVML: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _report(index: int, device: _Device) -> GpuReport:
    ask, nvml, mega = device.ask, device.nvml, 1e6
    capability = ask("GetCudaComputeCapability")
    reasons = _throttle_reasons(device)
    return GpuReport(
        index=index,
        name=str(nvml.nvmlDeviceGetName(device.handle)),
        uuid=ask("GetUUID"),
        memory_bytes=device.field("GetMemoryInfo", "total"),
        compute_capability=".".join(map(str, capability)) if capability else None,
        is_mig=device.yes("GetMigMode"),
        mig_devices=tuple(_mig_devices(device)),
        pcie_generation=ask("GetCurrPcieLinkGeneration"),
        max_pcie_generation=ask("GetMaxPcieLinkGeneration"),
        pcie_width=ask("GetCurrPcieLinkWidth"),
        max_pcie_width=ask("GetMaxPcieLinkWidth"),
        num_nvlinks=_num_nvlinks(device),
        clock_hertz=device.scaled(mega, "GetClockInfo", nvml.NVML_CLOCK_SM),
        max_clock_hertz=device.scaled(mega, "GetMaxClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_hertz=device.scaled(mega, "GetClockInfo", nvml.NVML_CLOCK_MEM),
        power_limit_watts=device.scaled(1e-3, "GetEnforcedPowerLimit"),
        default_power_limit_watts=device.scaled(1e-3, "GetPowerManagementDefaultLimit"),
        throttle_reasons=reasons,
        is_ecc=device.yes("GetEccMode"),
        problems=tuple(device.problems),
    )


def _throttle_reasons(device: _Device) -> tuple[str, ...] | None:
    bits = device.ask("GetCurrentClocksThrottleReasons")
    if bits is None:
        return None
    return tuple(word for bit, word in CLOCK_REASONS.items() if bits & bit)


def _mig_devices(device: _Device) -> Iterator[MigDevice]:
    if not device.yes("GetMigMode"):
        return
    for index in range(device.ask("GetMaxMigDeviceCount") or 0):
        try:
            handle = device.nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
        except device.nvml.NVMLError_NotFound:  # this place is not taken
            continue
        part = _Device(device.nvml, handle)
        yield MigDevice(uuid=part.ask("GetUUID"), memory_bytes=part.field("GetMemoryInfo", "total"))


def _num_nvlinks(device: _Device) -> int | None:
    states = []
    for link in range(device.nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(device.nvml.nvmlDeviceGetNvLinkState(device.handle, link))
        except device.nvml.NVMLError:  # not supported, or one more link than the device has
            break
    return sum(states) if states else None


def _sample(index: int, device: _Device) -> GpuSample:
    nvml = device.nvml
    memory = device.ask("GetMemoryInfo")
    busy = device.field("GetUtilizationRates", "gpu")
    pcie = {
        "receive": device.scaled(KIB, "GetPcieThroughput", nvml.NVML_PCIE_UTIL_RX_BYTES),
        "transmit": device.scaled(KIB, "GetPcieThroughput", nvml.NVML_PCIE_UTIL_TX_BYTES),
    }
    throttled = {
        reason: device.field("GetViolationStatus", "violationTime", policy)
        for policy, reason in POLICIES.items()
    }
    return GpuSample(
        index=index,
        name=str(nvml.nvmlDeviceGetName(device.handle)),
        uuid=str(nvml.nvmlDeviceGetUUID(device.handle)),
        utilization_ratio=None if busy is None else busy / 100,
        memory_used_bytes=getattr(memory, "used", None),
        memory_total_bytes=getattr(memory, "total", None),
        temperature_celsius=device.ask("GetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_watts=device.scaled(1e-3, "GetPowerUsage"),
        energy_joules=device.scaled(1e-3, "GetTotalEnergyConsumption"),
        clock_hertz=device.scaled(1e6, "GetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_hertz=device.scaled(1e6, "GetClockInfo", nvml.NVML_CLOCK_MEM),
        throttle_reasons=_throttle_reasons(device) or (),
        throttled_seconds={r: ns * 1e-9 for r, ns in throttled.items() if ns is not None},
        pcie_bytes_per_second=_known(pcie),
        nvlink_bytes=_nvlink_bytes(device),
        errors=_known(_errors(device)),
        processes=_processes(device),
        problems=tuple(device.problems),
    )


def _processes(
    device: _Device, kinds: Iterable[str] = ("Graphics", "Compute")
) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for kind in kinds:
        # The third version came with driver 510, the second one with 470.
        newest = device.ask(f"Get{kind}RunningProcesses_v3")
        told = device.ask(f"Get{kind}RunningProcesses_v2") if newest is None else newest
        found |= {process.pid: process.usedGpuMemory for process in told or ()}
    return found


def _nvlink_bytes(device: _Device) -> dict[str, float]:
    nvml = device.nvml
    fields = {
        "receive": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        "transmit": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    }
    values = device.ask("GetFieldValues", [(field, _ALL_LINKS) for field in fields.values()])
    return {
        direction: float(value.value.ullVal * KIB)
        for direction, value in zip(fields, values or (), strict=False)
        if value.nvmlReturn == nvml.NVML_SUCCESS
    }


def _errors(device: _Device) -> dict[str, float | None]:
    nvml = device.nvml
    life = nvml.NVML_AGGREGATE_ECC
    corrected, uncorrected = (
        nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    )
    return {
        "ecc_corrected": device.ask("GetTotalEccErrors", corrected, life),
        "ecc_uncorrected": device.ask("GetTotalEccErrors", uncorrected, life),
        "pcie_replay": device.ask("GetPcieReplayCounter"),
    }


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None}
