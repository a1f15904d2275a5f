"""A worker that goes wrong takes nobody down with it silently: no hang, one clear line."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize("kind", ["in_the_loss", "in_the_loss_of_an_idle_peer"])
def test_an_exception_on_one_worker_ends_the_others(run_workers, kind):
    """In a job that is not elastic the peer ends within seconds, and says that a worker is gone."""
    peer, guilty = run_workers("faults", 2, codes=[75, 1], kind=kind)
    assert guilty["error"] == "ArithmeticError"
    assert (peer["error"], peer["message"]) == (
        "TryAgainError",
        "a worker is gone, and this job was not started as an elastic one",
    )
    assert peer["seconds"] < guilty["seconds"] + 10


def test_workers_that_train_different_parameters_are_told(run_workers):
    """Freezing parameters on some workers only is refused instead of waited for for ever."""
    for rank in run_workers("faults", 2, codes=[2, 2], kind="other_parameters"):
        assert rank["error"] == "JobError"
        assert "the workers' models differ: rank 0 has 0.weight" in rank["message"]
