"""What the kernel has counted is put down to the step in which it was lost, all of it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from hetero_hvd.probes.kernel.throttling import CpuQuota
from hetero_hvd.probes.phase_clock import PhaseClock, ProcessorUse
from hetero_hvd.worker.timing import step_measurements
from hetero_hvd.worker.timing.step_measurements import LOOK_SECONDS, StepProfile

NOBODY = SimpleNamespace(
    collective=SimpleNamespace(operations=SimpleNamespace(reducing_seconds=0.0))
)
SOON, LATE = LOOK_SECONDS / 2, LOOK_SECONDS * 2
NAN = math.nan


class Kernel:
    """A meter of what the kernel counts, and the clock by which it is read."""

    def __init__(self):
        self.now = 1000.0
        self.lost = 0.0

    def take(self):
        """See `ThrottleMeter`."""
        lost, self.lost = self.lost, 0.0
        return lost

    def monotonic(self):
        """See `time`."""
        return self.now


@pytest.fixture(name="kernel")
def watched_kernel(monkeypatch):
    """In place of all three meters and of the clock."""
    kernel = Kernel()
    for name in ("ThrottleMeter", "MemoryStallMeter", "ContentionMeter"):
        monkeypatch.setattr(step_measurements, name, lambda: kernel)
    monkeypatch.setattr(step_measurements, "time", kernel)
    return kernel


STEPS = {
    "lost before the wait, which is short": ([(LATE, 0.3), (SOON, 0.0)], [0.3]),
    "lost before the wait, which is long": ([(LATE, 0.3), (LATE, 0.0)], [0.3]),
    "lost in the wait": ([(LATE, 0.0), (LATE, 0.2)], [0.2]),
    "lost in both": ([(LATE, 0.3), (LATE, 0.2)], [0.5]),
    "a step's loss is no other's": (
        [(LATE, 0.3), (LATE, 0.0), (LATE, 0.1), (LATE, 0.0)],
        [0.3, 0.1],
    ),
    "short steps": ([(SOON, 0.01), (0.0, 0.0), (LATE, 0.02), (0.0, 0.0)], [0.0, 0.03]),
    "not known": ([(LATE, NAN), (LATE, 0.0)], [NAN]),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_has_lost_is_told_of_it(kernel, name):
    """Each step looks twice: while it waits for the others, and at its end."""
    looks, expected = STEPS[name]
    profile = StepProfile(PhaseClock(), None)
    profile._next_report_at = math.inf
    profile._next_look_at = kernel.now + LOOK_SECONDS
    found = []
    for number, (seconds, lost) in enumerate(looks):
        kernel.now += seconds
        kernel.lost += lost
        if number % 2 == 0:
            profile.look()
        else:
            found.append(profile.step_applied(NOBODY, number, {})["throttled"])
    assert found == pytest.approx(expected, nan_ok=True)


QUOTAS = {
    "none": (math.inf, 1, 0.0),
    "one thread": (0.5, 1, 0.06),
    "several threads, which may not sleep in a wait": (0.5, 2, 0.025),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_gives_a_step_its_processor_time_in_so_long(monkeypatch, name):
    """That of the reduction is a part of it."""
    cores, num_threads, expected = QUOTAS[name]
    monkeypatch.setattr(CpuQuota, "cores", lambda _: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    clock = PhaseClock()
    monkeypatch.setattr(clock, "take_processor_seconds", lambda: ProcessorUse(0.01, 0.02))
    profile = StepProfile(clock, None)
    profile._next_report_at = math.inf
    found = profile.step_applied(NOBODY, 0, {})
    assert found["quota"] == pytest.approx(expected)
