"""Wrong numbers and wrong scripts: skipped, healed or told at once, never trained on silently."""

import time

import pytest

from .conftest import assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def test_a_step_without_a_finite_loss_is_skipped_by_all(start):
    """No replica takes it over; the worker that produced it is named."""
    faults = [
        {"worker": "beta:0", "step": 9, "kind": "not_a_number"},
        {"worker": "alpha:0", "step": 10, "kind": "infinite"},  # in the same epoch
    ]
    job = start(*faults, nodes=("alpha", "beta"))
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=8, workers=("alpha:0", "beta:0"), unused=(9, 10))
    for name in ("alpha:0", "beta:0"):
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
    assert "at step 12 the replica of beta:0 differs in model.ordered" in job.console
    results = job.results()
    assert len({result["state"] for result in results}) == 1
    assert len(results) == 3


CORRUPTED = {
    "most hold another one": (
        ("alpha", "beta", "gamma", "delta"),
        "the replica of alpha:0 differs",
    ),
    "one of two": (("alpha", "beta", "delta"), "all go back to the newest checkpoint"),
}


@pytest.mark.parametrize(("nodes", "words"), CORRUPTED.values(), ids=CORRUPTED.keys())
def test_a_loss_does_not_spread_a_replica_that_differs(start, nodes, words):
    """At the rendezvous it is named and replaced; of two, both go back to what is on disk."""
    job = start(
        {"worker": "alpha:0", "step": 10, "kind": "corrupt", "place": "after"},
        {"worker": "delta:0", "step": 16, "kind": "kill"},
        nodes=nodes,
        settings={"checkpoint_seconds": 0.05},
    )
    assert job.wait() == 0, job.console
    assert words in job.console
    assert "model.ordered" in job.console
    assert_exact(job, epochs=8, workers=[f"{name}:0" for name in sorted(nodes) if name != "delta"])


def test_an_error_of_the_script_ends_the_job_at_once(start):
    """It would only come again: one traceback from one worker, no restart."""
    faults = [{"worker": name, "step": 5, "kind": "raise"} for name in ("alpha:0", "beta:0")]
    job = start(*faults, nodes=("alpha", "beta"), settings={"max_restarts": 3})
    assert job.wait() == 1
    assert time.monotonic() - job.fired()[0] < 8
    assert job.console.count("Traceback") == 1, job.console
    assert "restart" not in job.console
    assert "ArithmeticError: the script is wrong" in job.summary()["reason"]


def test_what_one_worker_alone_raises_costs_that_worker_once(start):
    """A device or a disk of one node: the others go on, until the same comes again elsewhere."""
    errors = [("beta:0", 5, "shape"), ("gamma:0", 10, ""), ("delta:0", 15, "shape")]
    faults = [
        {"worker": name, "step": step, "kind": "raise", "error": error}
        for name, step, error in errors
    ]
    nodes = ("alpha", "beta", "gamma", "delta")
    job = start(*faults, nodes=nodes, settings={"balance": False})  # nobody idles
    assert job.wait() == 1, job.console
    assert None not in job.fired()
    alone = "the script is wrong: only this worker has raised it, so it is lost"
    assert job.console.count(alone) == 2, job.console
    assert "2 workers train together: alpha:0, delta:0" in job.console
    assert job.console.count("Traceback") == 2, job.console
    assert job.summary()["reason"] == "delta:0: ValueError: the script is wrong"
