"""Windows of recording begin and end between steps, within their limits."""

import gzip
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch

from hetero_hvd.messages import TraceRequested, WorkerId
from hetero_hvd.messages.launch import TraceSettings
from hetero_hvd.probes.phase_clock import PhaseClock
from hetero_hvd.worker.comm.single_process import SingleProcess
from hetero_hvd.worker.timing import trace as module
from hetero_hvd.worker.timing.trace import TraceControl

THREE = TraceRequested(num_steps=3, profiler=True, timeline=True)


class Client:
    """Keeps what the driver would hear."""

    def __init__(self):
        self.heard = []

    def trace_with(self, on_trace):
        """What the driver's wish for a trace is given to."""
        self.on_trace = on_trace


@pytest.fixture
def context():
    """Of a worker that trains alone."""
    own = SimpleNamespace(worker=WorkerId("alpha", 1))
    client = Client()
    return SimpleNamespace(
        settings=own, collective=SingleProcess(), client=client, tell=client.heard.append
    )


@pytest.fixture(autouse=True)
def handler():
    """The signal is ours only while a test runs."""
    yield
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def train(tracing, clock, context, steps):
    """Steps of one phase each; the step is told when it has ended."""
    for step in steps:
        with clock.phase("forward"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        tracing.step_applied(context, step)


def names_in(path):
    """Of the events in a trace."""
    with gzip.open(path) as file:
        return [event.get("name") for event in json.load(file)["traceEvents"]]


def test_a_requested_window_holds_its_steps_and_their_phases(tmp_path, context):
    """It begins after the step under way; Horovod's timeline needs Horovod."""
    clock = PhaseClock()
    tracing = TraceControl(TraceSettings(folder=str(tmp_path / "traces")), clock)
    train(tracing, clock, context, range(2))
    context.client.on_trace(THREE)
    train(tracing, clock, context, range(2, 8))
    (written,) = context.client.heard
    assert (written.kind, written.from_step, written.num_steps) == ("profiler", 3, 3)
    assert (written.worker, written.problem) == (WorkerId("alpha", 1), "")
    names = names_in(written.path)
    assert names.count("forward") == 3
    assert "aten::mm" in names
    assert clock.marker is None
    assert [path.name for path in (tmp_path / "traces").iterdir()] == [
        "alpha-1.step3.trace.json.gz"
    ]


def test_the_window_of_the_job_is_for_the_chosen(tmp_path, context):
    """From its first step to before its last; who was not chosen writes nothing."""
    for workers, num_files in ((("beta:0",), 0), (("alpha:1",), 1)):
        clock = PhaseClock()
        config = TraceSettings(folder=str(tmp_path), from_step=2, to_step=4, workers=workers)
        tracing = TraceControl(config, clock)
        train(tracing, clock, context, range(6))
        assert len(list(tmp_path.iterdir())) == num_files
    (written,) = context.client.heard
    assert (written.from_step, written.num_steps) == (2, 2)


def test_a_signal_opens_a_window(tmp_path, context):
    """SIGUSR2 to the worker; the end of the training closes what is open."""
    clock = PhaseClock()
    tracing = TraceControl(TraceSettings(folder=str(tmp_path)), clock)
    train(tracing, clock, context, range(1))
    os.kill(os.getpid(), signal.SIGUSR2)
    train(tracing, clock, context, range(1, 3))
    tracing.close(context, 2)
    assert [(w.from_step, w.num_steps) for w in context.client.heard] == [(2, 1)]


def test_a_change_of_membership_ends_a_window(tmp_path, context):
    """What was recorded so far is kept, and the reason told."""
    clock = PhaseClock()
    tracing = TraceControl(TraceSettings(folder=str(tmp_path)), clock)
    tracing.request(THREE)
    train(tracing, clock, context, range(2))
    context.collective.generation += 1
    train(tracing, clock, context, range(2, 3))
    (written,) = context.client.heard
    assert (written.num_steps, written.problem) == (2, "the membership changed")
    assert names_in(written.path).count("forward") == 2


def test_limits_hold(tmp_path, context, monkeypatch):
    """A file that is too large is not kept; a window that takes too long is cut; files are few."""
    clock = PhaseClock()
    tracing = TraceControl(TraceSettings(folder=str(tmp_path)), clock)
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    tracing.request(THREE)
    train(tracing, clock, context, range(5))
    assert context.client.heard[0].path == ""
    assert "are more than 10" in context.client.heard[0].problem
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(module, "MAX_SECONDS", 0.0)
    tracing.request(THREE)
    train(tracing, clock, context, range(5, 8))
    assert (context.client.heard[1].num_steps, context.client.heard[1].problem) == (
        1,
        "longer than 0 s",
    )
    monkeypatch.setattr(module, "MAX_FILES", 2)
    tracing.request(THREE)
    train(tracing, clock, context, range(8, 12))
    assert len(context.client.heard) == 2


def test_a_folder_that_cannot_be_made_costs_the_trace_only(tmp_path, context):
    """Training goes on."""
    (tmp_path / "file").write_text("")
    clock = PhaseClock()
    tracing = TraceControl(TraceSettings(folder=str(tmp_path / "file" / "traces")), clock)
    tracing.request(THREE)
    train(tracing, clock, context, range(5))
    assert context.client.heard == []
    assert clock.marker is None
