"""A node whose owner comes is left to him after the step under way, and no sample is lost."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.fake_nvml.library import build, environment
from tests.kit.fault_job import write_nodes

from .conftest import assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

EPOCHS = 60
DONE = "done"
ELSEWHERE = 100_000
"""Processors: others may use this machine while its tests run."""


@pytest.fixture
def visited(start, tmp_path):
    """Starts a job of which one node has an owner, and waits until both workers train."""
    library = build(tmp_path)

    def begin(**more):
        told = environment(library, told=tmp_path)
        owned = {"name": "owned", "slots": 1, "devices": [], "guest": True}
        owned |= {"guest_idle_seconds": 1, "guest_processors": ELSEWHERE} | more
        job = start(
            nodes=[{"name": "alpha", "slots": 1, "devices": []}, owned],
            epochs=EPOCHS,
            environment={
                name: told[name] for name in told if "NVML" in name or name.startswith("LD_")
            },
            patient_from=10,
            patient_until=DONE,
        )
        job.wait_for("2 workers train together", 100)
        job.wait_for_step(10, 100)
        return job

    return begin


def leaves(job, before, seconds=30.0):
    """How long it took from then until the node is free."""
    job.wait_for("owned:0 has left", seconds)
    return time.monotonic() - before


def finish(job):
    """Its owner has gone: all train to the end."""
    job.wait_for("the owner of owned has gone: owned:0 may come back", 60)
    job.wait_for("2 workers train together", 100, times=2)
    (job.folder / DONE).touch()
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=EPOCHS, workers=("alpha:0", "owned:0"))
    assert job.console.count("owned:0 makes room for the owner") == 1


@pytest.mark.matrix
def test_a_file_calls_the_owner(visited, tmp_path):
    """Nobody runs on the node while it is there, and for a while after it; 0 steps are lost."""
    file = tmp_path / "owner"
    job = visited(guest_file=str(file))
    before = time.monotonic()
    file.touch()
    seconds = leaves(job, before)
    sys.stdout.write(f"free after {seconds:.2f} s\n")
    assert seconds < 10  # on a machine that others use, too
    assert f"owned:0 makes room for the owner ({file} is there) and leaves" in job.console
    entry = {"name": "owned", "slots": 1, "devices": [], "guest": True, "guest_file": str(file)}
    entry |= {"guest_processors": ELSEWHERE, "guest_idle_seconds": 2}
    write_nodes(job.nodes_file, [{"name": "alpha", "slots": 1, "devices": []}, entry])
    job.wait_for("owned:0 makes room", 60, times=2)  # a changed entry is tried, and left again
    assert job.console.count("2 workers train together") == 1
    file.unlink()
    job.wait_for("the owner of owned has gone", 60)
    job.wait_for("2 workers train together", 100, times=2)
    (job.folder / DONE).touch()
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=EPOCHS, workers=("alpha:0", "owned:0"))


def test_a_process_on_the_gpu_is_the_owners(visited, tmp_path):
    """Unless a job has started it: the driver's library shows our own workers, too."""
    job = visited(devices=[0])
    (worker,) = (pid for name, pid in job.pids().items() if name.startswith("owned"))
    (tmp_path / "pid").write_text(str(worker))
    time.sleep(1.5)
    assert "makes room" not in job.console
    before = time.monotonic()
    with subprocess.Popen(["sleep", "60"]) as owners:
        (tmp_path / ".pid").write_text(str(owners.pid))
        (tmp_path / ".pid").rename(tmp_path / "pid")
        leaves(job, before)
        assert f"(GPU 0 is used by pid {owners.pid} " in job.console
        owners.kill()
    (tmp_path / "pid").unlink()
    finish(job)
