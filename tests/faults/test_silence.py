"""Workers that live but do not get on: frozen, hung, starved."""

import os
import signal
import time

import pytest

from .conftest import assert_exact, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def test_frozen_workers_are_found_by_their_silence(start):
    """SIGSTOP: no heartbeat, no end of a connection, only silence; within 5 s at defaults.

    A call that holds the interpreter stops the heart too, but the process computes: it has until
    the limit for hangs, here 8 s; the one of 5 s costs time only, the endless one the worker.
    """
    faults = [
        {"worker": "beta:0", "step": 10, "kind": "stop"},
        {"worker": "gamma:0", "step": 15, "kind": "hold_the_interpreter", "seconds": 5},
        {"worker": "alpha:0", "step": 20, "kind": "hold_the_interpreter"},
    ]
    nodes = ("alpha", "beta", "gamma", "delta")
    settings = {"balance": False, "hang_timeout_seconds": 8}  # nobody idles
    job = start(*faults, nodes=nodes, settings=settings)
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("delta:0", "gamma:0"))
    assert "beta:0 has been silent for 4 s and is killed" in job.console
    assert 3 < job.recovery_seconds(0) < 7
    assert "alpha:0 has been silent for 8 s, though it computes, and is killed" in job.console


def test_a_hung_data_loader_and_a_hung_loss_end_themselves(start):
    """Their hearts beat, but a phase lasts too long: they name the phase and go."""
    faults = [
        {"worker": "beta:0", "step": 10, "kind": "sleep", "place": "load"},
        {"worker": "alpha:0", "step": 20, "kind": "sleep"},
    ]
    nodes = ("alpha", "beta", "gamma", "delta")
    settings = {"hang_timeout_seconds": 2, "balance": False}  # nobody idles
    job = start(*faults, nodes=nodes, settings=settings)
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("delta:0", "gamma:0"))
    assert "this worker hangs and ends itself: data_wait has lasted" in job.console
    assert "this worker hangs and ends itself: forward has lasted" in job.console
    for name in ("beta:0", "alpha:0"):
        assert f"{name} exited with code 124" in job.console


@pytest.mark.matrix
def test_a_short_pause_is_forgiven(start):
    """A worker that stands still for less than the heartbeat's limit costs time, nothing else.

    And the driver's pause is not the workers' fault: a virtual machine that is moved stops the
    driver, and nobody is killed for the silence. If it outlasts their lease of 7 s, they stand
    still until the driver is back, and go on from where they were.
    """
    fault = {"worker": "beta:0", "step": 10, "kind": "stop"}
    job = start(fault, epochs=150, settings={"heartbeat_timeout_seconds": 3})
    wait_until(lambda: job.fired() != [None], 90, "the pause")
    time.sleep(1)
    os.kill(job.pids()["beta-0"], signal.SIGCONT)
    job.wait_for_step(20)
    os.kill(job.process.pid, signal.SIGSTOP)
    time.sleep(10)
    os.kill(job.process.pid, signal.SIGCONT)
    assert job.wait() == 0, job.console
    assert "silent" not in job.console
    assert "exited" not in job.console
    num_cut_off = job.console.count("the driver is out of reach for ")
    assert num_cut_off >= 3  # again, where this machine stands still for 7 s once more
    assert job.console.count("the driver is within reach again") == num_cut_off
    assert_exact(job, epochs=150, workers=("alpha:0", "beta:0", "gamma:0"))
