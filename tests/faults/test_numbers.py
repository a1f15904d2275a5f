"""Wrong numbers and wrong scripts: skipped, healed or told at once, never trained on silently."""

import time

import pytest

from .conftest import assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def test_a_step_without_a_finite_loss_is_skipped_by_all(start):
    """No replica takes it over; the worker that produced it is named."""
    faults = [
        {"worker": "beta:0", "step": 9, "kind": "not_a_number"},
        {"worker": "gamma:0", "step": 10, "kind": "infinite"},  # in the same epoch
    ]
    job = start(*faults)
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("alpha:0", "beta:0", "gamma:0"), unused=(9, 10))
    for name in ("beta:0", "gamma:0"):
        skipped = f"a step is skipped on all workers: loss or gradients of {name} were not finite"
        assert job.console.count(skipped) == 1, job.console


def test_too_many_such_steps_end_the_job(start):
    """In one line, with the worker's name, not with a NaN model after a night."""
    faults = [{"worker": "beta:0", "step": 5 + n, "kind": "not_a_number"} for n in range(11)]
    job = start(*faults, nodes=("alpha", "beta"))
    assert job.wait() == 2, job.console
    assert (
        "11 steps in a row without a result: loss or gradients of beta:0 were not finite"
        in job.console
    )


def test_the_worker_whose_gradients_alone_are_bad_is_named(start):
    """Its loss is finite: the step is taken once more to find out whose gradients are not."""
    job = start({"worker": "beta:0", "step": 5, "kind": "bad_gradient"}, nodes=("alpha", "beta"))
    assert job.wait() == 2, job.console
    assert None not in job.fired()
    assert "a step is skipped on all workers: loss or gradients of beta:0 were" in job.console
    assert "11 steps in a row without a result: loss or gradients of beta:0 were" in job.console


def test_a_replica_that_differs_is_healed_from_the_majority(start):
    """A flipped bit is found at the next check and reported with the worker's name."""
    job = start(
        {"worker": "beta:0", "step": 10, "kind": "corrupt", "place": "after"},
        environment={"HETERO_HVD_CHECK_STEPS": "4"},
    )
    assert job.wait() == 0, job.console
    assert "the replica of beta:0 differs at step 12: healed from the majority" in job.console
    results = job.results()
    assert len({result["state"] for result in results}) == 1
    assert len(results) == 3


@pytest.mark.parametrize(("error", "name"), [("", "ArithmeticError"), ("shape", "ValueError")])
def test_an_error_of_the_script_ends_the_job_at_once(start, error, name):
    """It would only come again: one traceback from one worker, no restart."""
    job = start(
        {"worker": "beta:0", "step": 5, "kind": "raise", "error": error},
        nodes=("alpha", "beta"),
        settings={"max_restarts": 3},
    )
    assert job.wait() == 1
    assert time.monotonic() - job.fired()[0] < 8
    assert job.console.count("Traceback") == 1
    assert "restart" not in job.console
    assert f"{name}: the script is wrong" in job.summary()["reason"]
