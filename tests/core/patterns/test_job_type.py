"""The kind of a job is named by evidence, and not named without."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_hvd.core.patterns.job_type import job_type
from tests.kit.machine_load import KINDS

AT = np.arange(600.0)
OF_MACHINE = ("cpu_use_ratio", "disk_read_bytes_per_second",
              "network_received_bytes_per_second", "network_sent_bytes_per_second")  # fmt: skip


def judged(figures, *, without=()):
    """The type of a GPU's job."""
    told = {name: values for name, values in figures.items() if name not in without}
    gpu = {name.removeprefix("gpu."): v for name, v in told.items() if name.startswith("gpu.")}
    return job_type(gpu, {name: told[name] for name in OF_MACHINE if name in told})


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_named_with_its_reasons(name):
    """In at least 9 of 10, drawn by seed; and never another one."""
    draw, kind = KINDS[name]
    found = [judged(draw(np.random.default_rng(seed), AT)) for seed in range(10)]
    assert all(each.reasons for each in found)
    assert {each.kind for each in found} <= {kind, "unknown"}
    assert sum(each.kind == kind for each in found) >= 9


MISSING = {
    "nothing of the machine": ("input from disks", OF_MACHINE, "unknown"),
    "no disks": ("input from disks", ("disk_read_bytes_per_second",), "unknown"),
    "no memory traffic": ("input from disks", ("gpu.dram_active_ratio",), "input"),
    "use alone": ("input from disks", ("gpu.dram_active_ratio", "gpu.power_watts"), "input"),
    "no use": ("input from disks", ("gpu.use_ratio",), "unknown"),
    "use alone of one that computes": (
        "compute", ("gpu.dram_active_ratio", "gpu.power_watts"), "unknown"),
    "use alone of one that spins": (
        "reductions", ("gpu.dram_active_ratio", "gpu.power_watts"), "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_what_is_not_measured_is_not_judged(name):
    """Synchronous training spins: use alone never tells that a device computes."""
    kind, without, expected = MISSING[name]
    figures = KINDS[kind][0](np.random.default_rng(1), AT)
    assert judged(figures, without=without).kind == expected


@pytest.mark.parametrize(
    ("cpu", "use", "expected"),
    [(0.99, 0.5, "input"), (0.5, 0.5, "unknown"), (0.99, 0.9, "unknown")],
)
def test_steps_that_are_shorter_than_samples(cpu, use, expected):
    """All that tells then is that a machine's processors have nothing left."""
    ones = np.ones(len(AT))
    found = job_type({"use_ratio": use * ones}, {"cpu_use_ratio": cpu * ones})
    assert found.kind == expected


@pytest.mark.parametrize(
    "use", [np.empty(0), np.ones(10), np.full(600, np.nan), np.full(600, 0.5) * np.nan]
)
def test_too_little_tells_nothing(use):
    """Nor does it fail."""
    assert job_type({"use_ratio": use}, {}).kind == "unknown"


def test_a_machine_without_gpus_is_judged_by_its_processors():
    """It has no figure beside them but disks and network."""
    at = np.arange(600.0)
    work = (at % 7 < 4).astype(float)
    machine = {"use_ratio": 0.9 * work + 0.02, "disk_read_bytes_per_second": 1e8 * (1 - work)}
    assert job_type(machine, machine).kind == "input"
    assert job_type({"use_ratio": 0.97 + 0 * at}, {}).kind == "compute"


def test_why_its_use_does_not_count_is_told_as_it_is():
    """There are enough samples, of which half tell it."""
    use = np.where(AT % 2 == 0, np.nan, 0.5)
    assert job_type({"use_ratio": use}, {}).reasons == ("only 300 of 600 samples tell its use",)
