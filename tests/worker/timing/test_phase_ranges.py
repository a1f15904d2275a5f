"""NVTX ranges around the phases of a step, where they are wanted and there are any."""

from __future__ import annotations

import contextlib
import logging

import pytest
import torch

from hetero_hvd.messages.launch import JobSettings
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.timing.phase_ranges import wanted_ranges

WANTED = JobSettings(nvtx=True)


@pytest.fixture
def ranges(monkeypatch):
    """What a profiler would see."""
    seen = []

    @contextlib.contextmanager
    def show(name):
        seen.append(name)
        try:
            yield
        finally:
            seen.append(f"end of {name}")

    monkeypatch.setattr(torch.cuda.nvtx, "range", show)
    return seen


def test_every_phase_is_a_range(ranges):
    """Also beside a trace, and where a phase fails."""
    clock = PhaseClock()
    clock.ranges = wanted_ranges(WANTED, torch.device("cuda", 0))
    with clock.phase("forward"):
        pass
    clock.marker = contextlib.nullcontext
    with contextlib.suppress(ArithmeticError), clock.phase("backward"):
        raise ArithmeticError
    assert ranges == ["forward", "end of forward", "backward", "end of backward"]
    assert clock.take().keys() == {"forward", "backward"}


@pytest.mark.parametrize("kind", ["cpu", "xpu"])
def test_without_cuda_it_is_said_that_it_has_no_effect(ranges, caplog, kind):
    """Once, and phases take no longer."""
    with caplog.at_level(logging.WARNING):
        assert wanted_ranges(WANTED, torch.device(kind)) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"nvtx: has no effect, as {kind} has no NVTX ranges"
    ]
    assert ranges == []


def test_who_does_not_want_it_hears_nothing(ranges, caplog):
    """The default."""
    assert wanted_ranges(JobSettings(), torch.device("cpu")) is None
    assert wanted_ranges(JobSettings(), torch.device("cuda", 0)) is None
    assert (ranges, caplog.records) == ([], [])
