"""Jobs in which something goes wrong on purpose, judged by the state that they leave."""

import os

import pytest

from tests.kit.fault_job import FaultJob
from tests.leftovers import processes_of, wait_until

NODES = ("alpha", "beta", "gamma")
SAMPLES, BATCH = 256, 64


def assert_exact(job, *, epochs, workers, unused=()):
    """All faults have fired, every sample was used once in each epoch, all replicas are equal.

    Args:
        job: An ended job.
        epochs: That it had to do.
        workers: Who finished, sorted.
        unused: Steps that were skipped on purpose: their samples are missing.
    """
    assert None not in job.fired(), f"a fault has not fired: {job.fired()}\n{job.console}"
    results = job.results()
    assert sorted(result["worker"] for result in results) == sorted(workers), job.console
    assert len({result["state"] for result in results}) == 1
    for result in results:
        assert result["applied_steps"] == epochs * SAMPLES // BATCH
        assert result["times_used"] == [epochs - bool(unused), epochs]
    summary = job.summary()
    assert summary["replicas_equal"] is True
    assert summary["steps"] == epochs * SAMPLES // BATCH
    assert not list(job.folder.glob("out/checkpoints/.*")), "half a checkpoint is left"
    assert not (job.folder / "out" / "control.sock").exists()


@pytest.fixture
def start(tmp_path):
    """Starts jobs; at the end none of their processes may be left."""
    jobs = []

    def start(*faults, nodes=NODES, epochs=8, settings=None, environment=None, **more):
        os.environ.update(environment or {})
        try:
            job = FaultJob(
                tmp_path,
                nodes,
                settings={"max_restarts": 0, **(settings or {})},
                faults=list(faults),
                epochs=epochs,
                num_samples=SAMPLES,
                batch_size=BATCH,
                **{"step_seconds": 0.01, **more},
            )
        finally:
            for name in environment or {}:
                del os.environ[name]
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.close()
    wait_until(lambda: not processes_of(tmp_path), 10, "the end of all processes")
