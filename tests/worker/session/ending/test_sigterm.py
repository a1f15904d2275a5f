"""SIGTERM at a worker: the first is a wish, a further one ends the process wherever it is."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

AGAIN_SECONDS = 0.5

SCRIPT = f"""
import ctypes, os, signal, sys, time
from hetero_hvd.worker.session.ending import sigterm

def hang():
    # Two locks of one mutex: no signal ends the wait in C for the second one.
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    for _ in range(2):
        library.pthread_mutex_lock(mutex)

case = sys.argv[1]
sigterm.AGAIN_SECONDS = {AGAIN_SECONDS}
own, written = os.pipe()
os.set_blocking(written, False)
if case == "own descriptor":
    signal.set_wakeup_fd(written)
if case == "child":  # as early as can be
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
own_wish = sigterm.Sigterm()
own_wish.listen()
child = os.fork() if case == "child" else 0
if case == "child" and not child:
    while True:
        time.sleep(0.01)
print(child, flush=True)
while case == "noted" and not own_wish.has_come:
    time.sleep(0.01)
if case == "own descriptor":
    assert os.read(own, 1) == bytes([signal.SIGTERM])
    time.sleep(60)
hang()
"""


@pytest.fixture
def run():
    """Starts the script as one of the cases; gives its process, and that of its child."""
    processes = []

    def start(case):
        command = [sys.executable, "-c", SCRIPT, case]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1], int(processes[-1].stdout.readline())

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("case", ["noted", "hangs already", "own descriptor"])
def test_a_further_sigterm_ends_a_process_that_hangs_in_c(run, case):
    """One that comes soon after the first is the same wish; a script's own descriptor is kept."""
    process, _ = run(case)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(AGAIN_SECONDS / 5)
    time.sleep(AGAIN_SECONDS)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM


def test_in_a_step_of_slurm_a_further_sigterm_is_the_same_wish(run, monkeypatch):
    """Preemption sends one at its beginning and one at its end; SIGKILL comes after it."""
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    process, _ = run("noted")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(1.2 * AGAIN_SECONDS)
    assert process.poll() is None


def test_what_a_child_is_told_is_not_the_workers_wish(run):
    """A forked process has the worker's handlers and descriptors, from its first instant on."""
    process, child = run("child")
    for _ in range(3):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGTERM)
        time.sleep(1.2 * AGAIN_SECONDS)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    time.sleep(AGAIN_SECONDS / 2)
    assert process.poll() is None
