"""Real workers whose memory does not hold the optimizer's state wait for one who has enough."""

from __future__ import annotations

import pytest

from hetero_hvd.exit_codes import EXIT_TRY_AGAIN
from tests.kit.fault_job import FaultJob, write_nodes

from .conftest import BATCH, SAMPLES, assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

STEPS = 40
EPOCHS = STEPS * BATCH // SAMPLES
SCRIPT = {"num_samples": SAMPLES, "batch_size": BATCH, "step_seconds": 0.01, "ballast": 300_000}
SHORT = "paused: 2 workers have room for 0.0 MiB of the optimizer's state, which takes 2."


def node(name, **more):
    """One worker, with or without memory."""
    return {"name": name, "slots": 1, "devices": [], **more}


SMALL = [node(name, memory_limit_bytes=2**20) for name in ("alpha", "beta")]


@pytest.mark.matrix
@pytest.mark.parametrize("mode", [True, "auto"])
def test_the_job_pauses_until_somebody_has_memory_and_once_more_when_that_is_lost(tmp_path, mode):
    """At the start nothing is trained; after the loss all go on from the newest checkpoint."""
    settings = {"max_restarts": 1, "checkpoint_seconds": 0.2}
    job = FaultJob(
        tmp_path,
        SMALL,
        settings=settings,
        faults=[{"worker": "gamma:0", "step": 25, "kind": "kill"}],
        epochs=EPOCHS,
        options={"shard_optimizer": mode},
        **SCRIPT,
    )
    job.wait_for(SHORT)
    assert not job.trace()
    write_nodes(job.nodes_file, [*SMALL, node("gamma")], **settings)
    assert job.wait() == 0, job.console
    assert job.console.count(SHORT) == 2, job.console
    assert "of the optimizer's state are lost: all go back to the newest checkpoint" in job.console
    assert "on one worker alone: alpha:0 0.0 MiB of" in job.console
    assert_exact(job, epochs=EPOCHS, workers=["alpha:0", "beta:0", "gamma:0"])


@pytest.mark.matrix
def test_nobody_comes(tmp_path):
    """The job ends after the time that it waits for workers, with the code of what may pass."""
    job = FaultJob(
        tmp_path,
        SMALL,
        settings={"max_restarts": 0, "elastic_timeout_seconds": 1.0},
        epochs=EPOCHS,
        options={"shard_optimizer": True},
        **SCRIPT,
    )
    assert job.wait() == EXIT_TRY_AGAIN, job.console
    assert job.console.count(SHORT) == 1, job.console
    assert "in 1 s nobody has come with enough memory" in job.console
    assert not job.trace()
