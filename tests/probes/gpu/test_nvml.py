"""GPUs are asked through the driver's library, one that is compiled here: two unequal ones."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from hetero_hvd.probes.gpu.nvml import survey

SURVEY = """
import dataclasses
from hetero_hvd.probes.gpu.nvml import survey
found = dataclasses.asdict(survey())
"""
SAMPLE = """
import dataclasses
from hetero_hvd.probes.gpu.nvml import GpuWatch
watch = GpuWatch()
samples, failures = watch.take()
found = [[dataclasses.asdict(gpu) | {"processes": len(gpu.processes)} for gpu, _ in samples]]
found += [failures, [watched for _, watched in watch.take()[0]]]
"""


def test_a_gpu_that_knows_everything_is_reported_whole(with_gpus):
    """Every field in its base unit: hertz, watts, bytes; MIG parts and links that are up."""
    survey = with_gpus(SURVEY)
    assert (survey["driver_version"], survey["cuda_version"]) == ("550.54.15", "12.4")
    assert survey["problem"] is None
    assert survey["gpus"][0] == {
        "index": 0,
        "name": "Fake H100",
        "uuid": "GPU-11111111-2222-3333-4444-555555555555",
        "memory_bytes": 81559 * 2**20,
        "compute_capability": "9.0",
        "is_mig": True,
        "mig_devices": [
            {"uuid": "MIG-12345678-1234-1234-1234-123456789012", "memory_bytes": 10 * 2**30}
        ],
        "pcie_generation": 5,
        "max_pcie_generation": 5,
        "pcie_width": 16,
        "max_pcie_width": 16,
        "num_nvlinks": 17,
        "clock_hertz": 1410e6,
        "max_clock_hertz": 1980e6,
        "memory_clock_hertz": 2619e6,
        "power_limit_watts": 700,
        "default_power_limit_watts": 700,
        "throttle_reasons": ["power_cap", "thermal"],
        "is_ecc": True,
        "problems": [],
    }


def test_what_a_gpu_does_not_support_is_none(with_gpus):
    """The older one has no MIG, NVLink, ECC; its halved PCIe width and lowered limit show."""
    gpu = with_gpus(SURVEY)["gpus"][1]
    assert [gpu[name] for name in ("is_mig", "num_nvlinks", "is_ecc")] == [None] * 3
    assert (gpu["pcie_width"], gpu["max_pcie_width"]) == (8, 16)
    assert (gpu["power_limit_watts"], gpu["default_power_limit_watts"]) == (215, 250)
    assert gpu["problems"] == []


def test_samples_are_in_base_units(with_gpus):
    """KiB, milliwatts, millijoules, nanoseconds and percent are NVML's, not ours."""
    gpus, _, watched = with_gpus(SAMPLE)
    assert gpus[0] == {
        "index": 0,
        "name": "Fake H100",
        "uuid": "GPU-11111111-2222-3333-4444-555555555555",
        "utilization_ratio": 0.87,
        "memory_used_bytes": 81559 * 2**18,
        "memory_total_bytes": 81559 * 2**20,
        "temperature_celsius": 64,
        "power_watts": 350.5,
        "energy_joules": 1234.5,
        "clock_hertz": 1410e6,
        "memory_clock_hertz": 2619e6,
        "throttle_reasons": ["power_cap", "thermal"],
        "throttled_seconds": {"power": 2.5, "thermal": 0},
        "pcie_bytes_per_second": {"receive": 2 * 2**20, "transmit": 2**20},
        "nvlink_bytes": {"receive": 4000 * 1024, "transmit": 3000 * 1024},
        "errors": {"ecc_corrected": 5, "ecc_uncorrected": 1, "pcie_replay": 7},
        "processes": 1,
        "problems": [],
    }
    assert watched[0] == [0, {}, 0.42]


def test_a_call_that_fails_is_named_and_costs_one_field(with_gpus):
    """A broken temperature sensor leaves the rest of the sample as it is."""
    gpu = with_gpus(SAMPLE)[0][1]
    assert gpu["temperature_celsius"] is None
    assert gpu["problems"] == ["GetTemperature: Unknown Error"]
    assert (gpu["power_watts"], gpu["utilization_ratio"], gpu["energy_joules"]) == (20, 0, None)


def test_a_lost_gpu_does_not_hide_the_others(with_gpus):
    """A GPU off the bus is reported; the other is still listed and sampled."""
    survey = with_gpus(SURVEY, "lost")
    assert [gpu["index"] for gpu in survey["gpus"]] == [0]
    assert survey["problem"] == "GPU 1: GPU is lost"
    gpus, failures, _ = with_gpus(SAMPLE, "lost")
    assert [gpu["index"] for gpu in gpus] == [0]
    assert failures == ["GPU 1: GPU is lost"]


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("mismatch", "NVML: RM has detected an NVML/RM version mismatch."),
        ("unloaded", "NVML: Driver Not Loaded"),
    ],
)
def test_a_driver_that_does_not_answer_is_a_problem_and_no_error(with_gpus, mode, problem):
    """The reason is told: there may be GPUs that cannot be used."""
    survey = with_gpus(SURVEY, mode)
    assert (survey["gpus"], survey["problem"]) == ([], problem)
    assert with_gpus(SAMPLE, mode) == [[], [problem], []]


def test_an_older_library_lacks_a_function(with_gpus):
    """What the library does not have is not supported, and no problem."""
    for gpu in with_gpus(SURVEY, "old")["gpus"]:
        assert gpu["throttle_reasons"] is None
        assert gpu["problems"] == []
    first = with_gpus(SAMPLE, "old")[0][0]
    assert (first["throttle_reasons"], first["processes"]) == ([], 1)


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi here")
def test_a_real_gpu_is_reported_as_by_nvidia_smi():
    """Name, UUID, memory, PCIe and power limit of every GPU."""
    fields = "name,uuid,memory.total,pcie.link.gen.max,pcie.link.width.max,power.limit"
    vector = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(vector, check=True, capture_output=True, text=True).stdout.splitlines()
    gpus = survey().gpus
    assert len(gpus) == len(lines)
    for gpu, line in zip(gpus, lines, strict=True):
        name, uuid, mebibytes, generation, width, watts = line.split(", ")
        assert (gpu.name, gpu.uuid) == (name, uuid)
        assert gpu.memory_bytes == pytest.approx(int(mebibytes) * 2**20, abs=2**20)
        assert (gpu.max_pcie_generation, gpu.max_pcie_width) == (int(generation), int(width))
        assert gpu.power_limit_watts == pytest.approx(float(watts), abs=0.01)


def test_the_use_of_one_gpu_is_watched(with_gpus):
    """In a thread, told when it has changed; one that is not there is never told of."""
    code = """
import threading
from hetero_hvd.worker.timing.gpu_utilization import DeviceUse
one = DeviceUse("GPU-11111111-2222-3333-4444-555555555555", ask_seconds=0.01)
none = DeviceUse("GPU-of-another-machine", ask_seconds=0.01)
while (ratio := one.news()) is None:
    pass
found = [ratio, one.news(), none.news(), DeviceUse("").news()]
for use in (one, none):
    use.close()
"""
    assert with_gpus(code) == [0.87, None, None, None]
