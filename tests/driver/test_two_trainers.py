"""The end of a loop is not the end of the script: what follows survives faults as well."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("two_trainers.py")
FAULTS = {"first-evaluation": "beta:0", "second-training": "gamma:0"}


def test_workers_are_lost_in_what_follows_the_first_loop(start_job):
    """In an evaluation after it and in a second trainer; then the first one trains again.

    Nobody else is let go, each sample is used as often as without the faults, the job ends well.
    """
    job = start_job(
        command=(str(SCRIPT), json.dumps(FAULTS)),
        max_restarts=0,
        checkpoint_seconds=0,
        balance=False,
    )
    code, said = job.wait(60), "\n".join(job.output)
    assert all((job.folder / f"fired-{place}").exists() for place in FAULTS), said
    assert code == 0, said
    results = {file.name: json.loads(file.read_text()) for file in job.folder.glob("result-*")}
    trained = [12, 3, 3, 7.5]
    assert results == {"result-alpha-0.json": [trained, trained, 7.5, [24, 6, 6, 7.5]]}, said
    summary = job.summary()
    assert (summary["reason"], summary["replicas_equal"]) == ("the training is finished", True)
    assert "is not started again: it would begin with the script's first loop" in said
    assert "before its loop over the epochs was through" not in said
    assert "is killed" not in said


def test_a_worker_is_lost_in_the_last_of_many_trainings(start_job):
    """As in a search over settings: what ended long ago is neither repeated nor in the way."""
    number = 25
    faults = {f"number-{number - 1}-training": "beta:0"}
    job = start_job(
        command=(str(SCRIPT), json.dumps(faults), str(number)),
        names=("alpha", "beta"),
        max_restarts=0,
        checkpoint_seconds=0,
        balance=False,
    )
    code, said = job.wait(60), "\n".join(job.output)
    assert all((job.folder / f"fired-{place}").exists() for place in faults), said
    assert code == 0, said
    results = {file.name: json.loads(file.read_text()) for file in job.folder.glob("result-*")}
    assert results == {"result-alpha-0.json": [[8, 2, 2, 7.5]] * number}, said
    assert job.summary()["reason"] == "the training is finished"
