"""What GPUs do from one sample to the next: rates, errors as they happen, GPUs that come and go."""

import pytest

METER = """
import os
from pathlib import Path
import msgspec
from hetero_hvd.probes.gpu.device_meter import DeviceMeter
told = Path({folder!r})
os.environ["FAKE_NVML_FOLDER"] = str(told)
meter, found = DeviceMeter(), []
for number, files in enumerate({files!r}):
    for name, text in files.items():
        (told / name).unlink(missing_ok=True)
        if text:
            (told / name).write_text(text)
    samples, problems = meter.take(2.0 * number)
    found.append([[json.loads(msgspec.json.encode(gpu)) for gpu in samples], problems])
"""


@pytest.fixture
def takes(with_gpus, tmp_path):
    """Samples of a meter, each after some files have changed; see tests/fake_nvml/nvml.c."""

    def take(*files, mode=""):
        return with_gpus(METER.format(folder=str(tmp_path), files=files), mode)

    return take


def test_rates_need_a_sample_before(takes):
    """NVLink's counters stand still here; a reason that holds nobody back is none."""
    (first, _), (second, problems) = takes({}, {})
    assert [gpu["nvlink_received_bytes_per_second"] for gpu in first] == [None, None]
    assert second[0]["nvlink_received_bytes_per_second"] == 0
    assert second[0]["pcie_received_bytes_per_second"] == 2 * 2**20
    assert second[0]["dram_active_ratio"] == 0.42
    assert second[0]["memory_clock_hertz"] == 2619e6
    assert [gpu["throttle_reasons"] for gpu in second] == [["power_cap", "thermal"], []]
    assert [len(gpu["used_by"]) for gpu in second] == [1, 0]
    assert second[1]["energy_joules"] is None
    assert problems == ["GPU 1: GetTemperature: Unknown Error"]


def test_errors_of_the_driver_are_counted_as_they_happen(takes):
    """One before sampling began is of another run; each new one counts, also of one number."""
    found = takes({"xid": "13"}, {}, {"xid": "79"}, {}, {"xid": "48"})
    told = [(gpus[0]["xid"], gpus[0]["num_xids"]) for gpus, _ in found]
    assert found[-1][0][0]["xids"] == {"79": 1, "48": 1}
    assert told == [(0, 0), (0, 0), (79, 1), (79, 1), (48, 2)]
    assert [gpus[1]["num_xids"] for gpus, _ in found] == [0] * 5


def test_a_gpu_may_be_lost_and_come_back(takes):
    """The other one is sampled meanwhile; temperature and ECC are those of the moment."""
    found = takes({}, {"lost": "1", "temperature": "91", "ecc": "3"}, {"lost": ""})
    assert [[gpu["index"] for gpu in gpus] for gpus, _ in found] == [[0, 1], [0], [0, 1]]
    assert found[1][1] == ["GPU 1: GPU is lost"]
    first = found[1][0][0]
    assert (first["temperature_celsius"], first["ecc_uncorrected"]) == (91, 3)


@pytest.mark.parametrize("mode", ["mismatch", "unloaded"])
def test_a_driver_that_does_not_answer_is_asked_again(takes, mode):
    """Each time anew: it may be loaded meanwhile."""
    found = takes({}, {}, mode=mode)
    assert [gpus for gpus, _ in found] == [[], []]
    assert all(len(problems) == 1 for _, problems in found)
