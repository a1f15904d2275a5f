"""Emulated devices: their time, its noise, and that a run can be repeated."""

from __future__ import annotations

import msgspec
import pytest
import torch

from hetero_hvd.config.node import EmulateConfig
from hetero_hvd.messages import WorkerId
from hetero_hvd.messages.launch import EmulateSettings
from hetero_hvd.probes import phase_clock
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.step import emulation, passes
from hetero_hvd.worker.step.emulation import Emulation
from hetero_hvd.worker.step.passes import Passes

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)


class Clock:
    """Time that passes only where somebody sleeps, or is said to compute."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        """The time."""
        return self.now

    process_time = perf_counter

    def sleep(self, seconds):
        """Let it pass."""
        assert seconds >= 0
        self.now += seconds


@pytest.fixture(name="clock")
def fake_clock(monkeypatch):
    """The emulation's clock."""
    clock = Clock()
    for module in (emulation, passes, phase_clock):
        monkeypatch.setattr(module, "time", clock)
    return clock


def of(worker=ALPHA, **settings):
    """The emulation that a worker makes of nodes.yaml."""
    config = EmulateConfig(**settings)
    return Emulation.of(msgspec.convert(config, EmulateSettings, from_attributes=True), worker)


def steps(emulated, clock, *, count=40, num_samples=100):
    """Seconds of some steps that compute for 1 ms."""
    found = []
    for _ in range(count):
        began = clock.now
        clock.now += 0.001
        emulated.hold(began, num_samples)
        found.append(clock.now - began)
    return found


def test_without_noise_a_step_takes_what_the_curve_says(clock):
    """Overhead and time per sample; a step without samples takes no more than its own time."""
    emulated = of(seconds_per_sample=0.001, overhead_seconds=0.05)
    assert steps(emulated, clock) == pytest.approx([0.15] * 40)
    assert steps(emulated, clock, num_samples=0) == pytest.approx([0.001] * 40)
    emulated.slow_down(2)
    assert steps(emulated, clock) == pytest.approx([0.30] * 40)


def test_noise_is_the_same_in_every_run_and_another_one_on_each_worker(clock):
    """The seed and the worker's name decide, and nothing else."""
    noise = {"seconds_per_sample": 0.001, "noise_ratio": 0.2, "spike_probability": 0.1}
    first = steps(of(**noise), clock)
    assert steps(of(**noise), clock) == pytest.approx(first)
    assert max(first) / min(first) > 1.5
    others = [of(BETA, **noise), of(WorkerId("alpha", 1), **noise), of(**noise, noise_seed=1)]
    for other in others:
        assert steps(other, clock) != pytest.approx(first)


def test_noise_goes_on_where_a_fault_slows_a_worker_down(clock):
    """The factors after an injected slow-down are those that would have come."""
    noise = {"seconds_per_sample": 0.001, "noise_ratio": 0.2}
    expected = steps(of(**noise), clock)
    emulated = of(**noise)
    found = steps(emulated, clock, count=20)
    emulated.slow_down(2)
    found += [seconds / 2 for seconds in steps(emulated, clock, count=20)]
    assert found == pytest.approx(expected)


def test_stretched_compute_has_one_factor_a_step(clock):
    """All pieces of a step are stretched alike; what is faster than the machine is not held."""
    emulated = of(relative_speed=0.5, spike_probability=0.3, spike_ratio=10.0)
    found = []
    for _ in range(60):
        pieces = []
        for _ in range(2):
            began = clock.now
            clock.now += 0.01
            emulated.stretch(began)
            pieces.append(clock.now - began)
        emulated.hold(began, 8)
        assert pieces[0] == pytest.approx(pieces[1])
        found.append(round(pieces[0], 6))
    assert set(found) == {0.02, 0.2}


@pytest.mark.parametrize("waited", [0.0, 0.02, 0.5])
@pytest.mark.parametrize(
    ("settings", "own_seconds"),
    [
        ({"seconds_per_sample": 0.01, "overhead_seconds": 0.04}, 0.14),
        ({"relative_speed": 0.25}, 0.08),
    ],
)
def test_what_a_layer_waits_for_others_is_no_compute(clock, waited, settings, own_seconds):
    """Emulated time passes beside it: else who waits most would seem to be the fastest."""
    own = PhaseClock()
    steps_of = Passes(torch.device("cpu"), None, None, own)
    steps_of.emulate(of(**settings))

    def loss():
        clock.now += 0.02 + waited
        own.add("forward", -waited)  # as `SyncRounds` does
        own.add("comm_wait", waited)

    for _ in range(3):
        steps_of.begin(None)
        steps_of.forward(loss)
        steps_of.hold(10)
        taken = own.take()
        assert taken["forward"] + taken["backward"] == pytest.approx(own_seconds)
        assert taken["comm_wait"] == pytest.approx(waited)
