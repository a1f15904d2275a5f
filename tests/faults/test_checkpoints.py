"""What is on disk: from there a job goes on, exactly, on any number of workers."""

import time

import pytest

from tests.kit.fault_job import FaultJob

from .conftest import BATCH, SAMPLES, assert_exact, processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]
EVERY = {"checkpoint_seconds": 0.2}


def again(folder, nodes, *, epochs, resume="out"):
    """`hetero-hvd run --resume` of the same script."""
    return FaultJob(
        folder,
        nodes,
        arguments=("--output", "second", "--resume", resume),
        settings={"max_restarts": 0},
        epochs=epochs,
        num_samples=SAMPLES,
        batch_size=BATCH,
        step_seconds=0.01,
    )


def test_a_killed_driver_leaves_no_orphan_and_a_job_that_goes_on(start, tmp_path):
    """Workers keep their state and end within 10 s; on two instead of three all is exact.

    Half a file, as after a power loss, is not taken but the one before, and it is said.
    """
    job = start(epochs=60, settings=EVERY)
    kept = tmp_path / "out" / "checkpoints"
    wait_until(lambda: len(list(kept.glob("step-*/manifest.json"))) >= 2, 60, "two checkpoints")
    job.process.kill()
    began = time.monotonic()
    wait_until(lambda: not processes_of(tmp_path), 10, "the end of all workers")
    assert time.monotonic() - began < 10
    assert not job.results()
    reached = max(line[1] for line in job.trace())
    torn = max(kept.glob("step-*")) / "state.pt"
    torn.write_bytes(torn.read_bytes()[:100])
    second = again(tmp_path, ("alpha", "beta"), epochs=60)
    assert second.wait() == 0, second.console
    assert "is damaged: 100 bytes where" in second.console
    results = job.results()
    assert len(results) == 2
    assert len({result["state"] for result in results}) == 1
    for result in results:
        assert result["times_used"] == [60, 60]
        assert result["applied_steps"] == 60 * SAMPLES // BATCH
    repeated = [line for line in second.trace() if line[1] <= reached]
    assert "has found" in second.console
    assert len({line[1] for line in repeated}) <= reached


def test_all_workers_lost_at_once(start):
    """The driver starts them anew, and they go on from the last checkpoint."""
    names = ("alpha:0", "beta:0", "gamma:0")
    faults = [{"worker": name, "step": 40, "kind": "kill"} for name in names]
    job = start(*faults, epochs=20, num_workers=3, settings={"max_restarts": 1, **EVERY})
    assert job.wait(90) == 0, job.console
    assert_exact(job, epochs=20, workers=names)
    assert "all members are lost" in job.console
    assert "has found" in job.console


def test_without_a_checkpoint_resume_is_refused(tmp_path):
    """A mistyped folder is one line, not a training from the start."""
    job = again(tmp_path, ("alpha",), epochs=1, resume="nowhere")
    assert job.wait() == 2
    assert "--resume nowhere: there is no such folder" in job.console
