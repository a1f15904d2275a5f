"""What a node is made of, and what it and its GPUs do, second by second.

NaN, 0 for a count of events, or empty: not told. Figures of a machine carry its identity, as two
nodes of a job may be one machine.
"""

from __future__ import annotations

import math

import msgspec

from hetero_hvd.messages.identity import Message


class DeviceUser(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process that uses a GPU.

    Attributes:
        pid: As its node counts; 0: not told.
        user: Name of its owner, or the number where there is no name.
        command: Name of its program, or of the script that an interpreter runs; no arguments.
        job: Whose it is: our run and worker, a Slurm job, a pod or a container; empty: not known.
        memory_bytes: That it uses on this GPU.
    """

    pid: int = 0
    user: str = ""
    command: str = ""
    job: str = ""
    memory_bytes: float = math.nan

    def __str__(self) -> str:
        job = f" job {self.job}" if self.job else ""
        return f"pid {self.pid} {self.user or '?'} {self.command or '?'}{job}"


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU does. Rates are means since the sample before, unless said otherwise.

    Attributes:
        index: As its driver counts, 0-based.
        uuid: The same in every container, under every index.
        name: Product name.
        use_ratio: Part of the last second or less in which a kernel ran, 0 to 1.
        memory_used_bytes: By all processes.
        memory_total_bytes: All of it.
        temperature_celsius: Of the chip.
        power_watts: Drawn by the board.
        energy_joules: Counter since the driver was loaded.
        sm_clock_hertz: Of the multiprocessors, now.
        memory_clock_hertz: Now.
        throttle_reasons: Why the clock is held down now, see `probes.gpu.nvml.CLOCK_REASONS`.
        throttled_seconds: Reason to how long it has held the clock down; counters since the driver
            was loaded.
        pcie_received_bytes_per_second: Over 20 ms.
        pcie_sent_bytes_per_second: Over 20 ms.
        nvlink_received_bytes_per_second: Over all links.
        nvlink_sent_bytes_per_second: Over all links.
        dram_active_ratio: Part of the time in which its memory's interface moved data, 0 to 1.
        ecc_corrected: Errors of memory in the board's life that were corrected.
        ecc_uncorrected: Errors of memory in the board's life that were not.
        pcie_replays: Transfers that were repeated since the driver was loaded.
        xid: Number of the newest error that the driver has reported since sampling began; 0: none.
        num_xids: So many errors have been reported since sampling began.
        xids: Number of each of them to how often it was reported; one may hide another in `xid`.
        used_by: Processes that use it.
    """

    index: int = 0
    uuid: str = ""
    name: str = ""
    use_ratio: float = math.nan
    memory_used_bytes: float = math.nan
    memory_total_bytes: float = math.nan
    temperature_celsius: float = math.nan
    power_watts: float = math.nan
    energy_joules: float = math.nan
    sm_clock_hertz: float = math.nan
    memory_clock_hertz: float = math.nan
    throttle_reasons: tuple[str, ...] = ()
    throttled_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    pcie_received_bytes_per_second: float = math.nan
    pcie_sent_bytes_per_second: float = math.nan
    nvlink_received_bytes_per_second: float = math.nan
    nvlink_sent_bytes_per_second: float = math.nan
    dram_active_ratio: float = math.nan
    ecc_corrected: float = math.nan
    ecc_uncorrected: float = math.nan
    pcie_replays: float = math.nan
    xid: int = 0
    num_xids: int = 0
    xids: dict[int, int] = msgspec.field(default_factory=dict)
    used_by: tuple[DeviceUser, ...] = ()


class NodeSampled(Message, frozen=True):
    """What a node does. Rates are means since the sample before.

    Attributes:
        node: Its name in the job.
        machine_id: Identity of its machine, whatever that is called.
        at_unix_seconds: When, by the node's clock.
        seconds: Since the sample before; NaN: this is the first one.
        took_seconds: To take this sample.
        cpu_use_ratio: Part of all processors' time that was used, 0 to 1.
        load: Processes that ran or waited for a processor or disk, mean over a minute.
        memory_used_bytes: That cannot be had without swapping.
        memory_total_bytes: All of it.
        network_received_bytes_per_second: Of all interfaces without loopback.
        network_sent_bytes_per_second: Of all interfaces without loopback.
        disk_read_bytes_per_second: Of all disks.
        disk_written_bytes_per_second: Of all disks.
        package_power_watts: Of all processor packages (RAPL).
        package_energy_joules: The same as a counter since sampling began.
        cpu_temperature_celsius: Of the hottest sensor of a processor.
        devices: Its GPUs, by index.
        problems: What could not be asked this time.
    """

    node: str = ""
    machine_id: str = ""
    at_unix_seconds: float = math.nan
    seconds: float = math.nan
    took_seconds: float = math.nan
    cpu_use_ratio: float = math.nan
    load: float = math.nan
    memory_used_bytes: float = math.nan
    memory_total_bytes: float = math.nan
    network_received_bytes_per_second: float = math.nan
    network_sent_bytes_per_second: float = math.nan
    disk_read_bytes_per_second: float = math.nan
    disk_written_bytes_per_second: float = math.nan
    package_power_watts: float = math.nan
    package_energy_joules: float = math.nan
    cpu_temperature_celsius: float = math.nan
    devices: tuple[DeviceSample, ...] = ()
    problems: tuple[str, ...] = ()


class ForeignSampled(Message, frozen=True):
    """What another program has told the hub at one time.

    Attributes:
        source: Its name.
        units: Of each series, by its name.
        values: Of each series that was told.
    """

    source: str
    units: dict[str, str]
    values: dict[str, float]


class DeviceEquipment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU, as it does not change while a run lasts.

    Attributes:
        index: As its driver counts, 0-based.
        uuid: The same in every container, under every index.
        name: Product name.
        memory_bytes: All of its memory.
        power_limit_watts: What holds when the run begins.
        max_sm_clock_hertz: Of the multiprocessors.
        pcie: Generation and lanes that it can use, such as `5 x16`.
        num_nvlinks: That are up; 0: none, or not told.
    """

    index: int = 0
    uuid: str = ""
    name: str = ""
    memory_bytes: float = math.nan
    power_limit_watts: float = math.nan
    max_sm_clock_hertz: float = math.nan
    pcie: str = ""
    num_nvlinks: int = 0


class NodeEquipped(Message, frozen=True):
    """What a node is made of; told once for each node.

    Attributes:
        node: Its name in the job.
        machine_id: Identity of its machine.
        host: Name of the machine.
        system: Kernel and architecture.
        processor: Product name.
        num_cpus: Logical CPUs of the machine.
        memory_bytes: All of it.
        interfaces: Name of each network interface that is up to its speed, bits per second.
        gpu_driver: Version.
        cuda: Newest version that the driver can run.
        devices: Its GPUs, by index.
    """

    node: str = ""
    machine_id: str = ""
    host: str = ""
    system: str = ""
    processor: str = ""
    num_cpus: int = 0
    memory_bytes: float = math.nan
    interfaces: dict[str, float] = msgspec.field(default_factory=dict)
    gpu_driver: str = ""
    cuda: str = ""
    devices: tuple[DeviceEquipment, ...] = ()


class OwnerSeen(Message, frozen=True):
    """Whether the owner of a node uses it: told at first, and whenever that changes.

    Attributes:
        node: Its name in the job.
        words: By what its owner was seen; empty: by nothing for as long as nobody else may have it.
    """

    node: str = ""
    words: str = ""
