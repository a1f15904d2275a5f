"""What this node is made of, as it does not change while a run lasts."""

from __future__ import annotations

import math
import os
import platform
import socket

from hetero_hvd.messages import DeviceEquipment, NodeEquipped
from hetero_hvd.probes.gpu.gpu_records import GpuReport
from hetero_hvd.probes.gpu.nvml import survey
from hetero_hvd.probes.machine.hardware import interfaces
from hetero_hvd.probes.machine.machine_meter import memory_bytes
from hetero_hvd.probes.machine.processor import probe_processor


def take_equipment() -> NodeEquipped:
    """Look at this machine once; makes no CUDA call."""
    gpus = survey()
    return NodeEquipped(
        host=socket.gethostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=probe_processor().model,
        num_cpus=os.cpu_count() or 0,
        memory_bytes=memory_bytes()[1],
        interfaces={
            found.name: float(found.speed_bits_per_second or math.nan)
            for found in interfaces()
            if found.is_up and found.reaches_others
        },
        gpu_driver=gpus.driver_version or "",
        cuda=gpus.cuda_version or "",
        devices=tuple(map(_device, gpus.gpus)),
    )


def _device(gpu: GpuReport) -> DeviceEquipment:
    generation, width = gpu.max_pcie_generation, gpu.max_pcie_width
    return DeviceEquipment(
        index=gpu.index,
        uuid=gpu.uuid or "",
        name=gpu.name,
        memory_bytes=float(gpu.memory_bytes or math.nan),
        power_limit_watts=gpu.power_limit_watts or math.nan,
        max_sm_clock_hertz=gpu.max_clock_hertz or math.nan,
        pcie=f"{generation} x{width}" if generation and width else "",
        num_nvlinks=gpu.num_nvlinks or 0,
    )
