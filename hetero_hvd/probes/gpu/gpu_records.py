"""What is known about a GPU. What its driver does not tell is None."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MigDevice:
    """A part of a GPU that was divided.

    Attributes:
        uuid: As CUDA_VISIBLE_DEVICES takes it.
        memory_bytes: Of this part.
    """

    uuid: str | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """A GPU, whether or not the installed torch can use it.

    Attributes:
        index: As the driver counts, 0-based.
        name: Product name.
        uuid: The same in every container, under every index.
        memory_bytes: All of its memory.
        compute_capability: `major.minor`, what kernels are compiled for.
        is_mig: Whether it is divided into MIG devices.
        mig_devices: The parts.
        pcie_generation: Now; it falls when the GPU idles.
        max_pcie_generation: That GPU and slot can do.
        pcie_width: Lanes in use; fewer than `max_pcie_width` for good: a bad slot or riser.
        max_pcie_width: Lanes that GPU and slot have.
        num_nvlinks: NVLinks that are up.
        clock_hertz: Of the multiprocessors, now.
        max_clock_hertz: Of the multiprocessors, at most.
        memory_clock_hertz: Now.
        power_limit_watts: What holds now.
        default_power_limit_watts: As delivered; above `power_limit_watts`: somebody lowered it.
        throttle_reasons: Why the clock is below its maximum, see `nvml.CLOCK_REASONS`.
        is_ecc: Whether the memory corrects errors.
        problems: What could not be asked, `function: reason`.
    """

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    is_mig: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    pcie_generation: int | None = None
    max_pcie_generation: int | None = None
    pcie_width: int | None = None
    max_pcie_width: int | None = None
    num_nvlinks: int | None = None
    clock_hertz: float | None = None
    max_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    power_limit_watts: float | None = None
    default_power_limit_watts: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    is_ecc: bool | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """What a GPU does now. Counters are since the driver was loaded, unless said otherwise.

    Attributes:
        index: As the driver counts, 0-based.
        name: Product name.
        uuid: Identity.
        utilization_ratio: Part of the last second or less in which a kernel ran, 0 to 1; it does
            not say how much of the GPU that kernel used.
        memory_used_bytes: By all processes.
        memory_total_bytes: All of it.
        temperature_celsius: Of the chip.
        power_watts: Drawn by the board.
        energy_joules: Counter.
        clock_hertz: Of the multiprocessors.
        memory_clock_hertz: Of its memory.
        throttle_reasons: Why the clock is held down now, see `nvml.CLOCK_REASONS`.
        throttled_seconds: Reason to how long it held the clock down; counters.
        pcie_bytes_per_second: `receive` and `transmit`, over 20 ms.
        nvlink_bytes: `receive` and `transmit` over all links; counters.
        errors: `ecc_corrected` and `ecc_uncorrected`, in the board's life, and `pcie_replay`.
        processes: Number of each process that computes on it, and what it uses of its memory.
        problems: What could not be asked, `function: reason`.
    """

    index: int
    name: str
    uuid: str
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    energy_joules: float | None
    clock_hertz: float | None
    memory_clock_hertz: float | None
    throttle_reasons: tuple[str, ...]
    throttled_seconds: dict[str, float]
    pcie_bytes_per_second: dict[str, float]
    nvlink_bytes: dict[str, float]
    errors: dict[str, float]
    processes: dict[int, int | None]
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GpuSurvey:
    """The GPUs of this machine.

    Attributes:
        driver_version: Of the kernel's driver; None where it does not answer.
        cuda_version: Newest CUDA that the driver can run.
        gpus: By index; a machine without any is a normal case.
        problem: Why there may be GPUs that are not listed; None if there is no such reason.
    """

    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[GpuReport, ...] = ()
    problem: str | None = None
