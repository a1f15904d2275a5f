"""Workers that live but do not get on: frozen, hung, starved."""

import os
import signal
import time

import pytest

from .conftest import assert_exact, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def test_a_frozen_worker_is_found_by_its_silence(start):
    """SIGSTOP: no heartbeat, no end of a connection, only silence; within 5 s at defaults."""
    job = start({"worker": "beta:0", "step": 10, "kind": "stop"})
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("alpha:0", "gamma:0"))
    assert "beta:0 has been silent for 4 s and is killed" in job.console
    assert 3 < job.recovery_seconds() < 7


def test_a_worker_that_holds_the_interpreter_is_found_too(start):
    """No thread of it runs any more, so its heart stops."""
    job = start({"worker": "beta:0", "step": 10, "kind": "hold_the_interpreter"})
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("alpha:0", "gamma:0"))


def test_a_hung_data_loader_ends_itself(start):
    """Its heart beats, but its own phase lasts too long: it names the phase and goes."""
    job = start(
        {"worker": "beta:0", "step": 10, "kind": "sleep", "place": "load"},
        settings={"hang_timeout_seconds": 2},
    )
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("alpha:0", "gamma:0"))
    assert "this worker hangs and ends itself: data_wait has lasted" in job.console
    assert "beta:0 exited with code 124" in job.console


def test_a_hung_loss_ends_itself(start):
    """The same in the forward pass."""
    job = start(
        {"worker": "alpha:0", "step": 10, "kind": "sleep"}, settings={"hang_timeout_seconds": 2}
    )
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("beta:0", "gamma:0"))
    assert "forward has lasted" in job.console


def test_a_short_pause_is_forgiven(start):
    """A worker that stands still for less than the heartbeat's limit costs time, nothing else."""
    job = start({"worker": "beta:0", "step": 10, "kind": "stop"})
    wait_until(lambda: job.fired() != [None], 20, "the pause")
    time.sleep(1.5)
    os.kill(job.pids()["beta-0"], signal.SIGCONT)
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("alpha:0", "beta:0", "gamma:0"))


def test_a_pause_of_the_driver_is_not_the_workers_fault(start):
    """A virtual machine that is moved stops the driver: nobody is killed for its silence."""
    job = start(epochs=100, settings={"heartbeat_timeout_seconds": 2})
    job.wait_for_step(10)
    os.kill(job.process.pid, signal.SIGSTOP)
    time.sleep(3.5)
    os.kill(job.process.pid, signal.SIGCONT)
    assert job.wait() == 0, job.console
    assert "silent" not in job.console
    assert_exact(job, epochs=100, workers=("alpha:0", "beta:0", "gamma:0"))
