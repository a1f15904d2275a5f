"""The system kills processes that read data, for want of memory: real ones of real workers."""

import pytest

from tests.faults.conftest import assert_exact

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def test_each_killed_loader_costs_a_restart_of_its_worker(start):
    """The same error on two workers is an error of the script, unless the system has made it."""
    faults = [
        {"worker": "beta:0", "step": 8, "kind": "kill", "place": "load"},
        {"worker": "alpha:0", "step": 20, "kind": "kill", "place": "load"},
    ]
    job = start(
        *faults,
        epochs=60,
        num_workers=3,
        patient_from=30,
        loader_processes=1,
        settings={"max_restarts": 1, "balance": False},  # nobody idles
    )
    assert job.wait(200) == 0, job.console
    assert_exact(job, epochs=60, workers=("alpha:0", "beta:0", "gamma:0"))
    for name in ("alpha:0", "beta:0"):
        assert f"{name}: RuntimeError: DataLoader worker (pid" in job.console
        codes = job.summary()["workers"][name]["exit_codes"]
        assert [bool(code) for code in codes] == [True, False], job.console
    assert job.console.count("only this worker has raised it, so it is lost") == len(faults)
