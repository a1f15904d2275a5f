"""Many faults, one after the other: nothing adds up, nothing is lost."""

import pytest

from .conftest import assert_exact

pytestmark = [pytest.mark.process, pytest.mark.matrix, pytest.mark.timeout(300)]

KILLS = 5


def test_five_kills_and_five_joins(start):
    """Each worker that dies comes back before the next one dies; at the end all is exact."""
    names = ("alpha:0", "beta:0", "gamma:0")
    steps = [10 + 100 * number for number in range(KILLS)]
    faults = [
        {"worker": names[number % 3], "step": step, "kind": "kill"}
        for number, step in enumerate(steps)
    ]
    settings = {"max_restarts": 5, "checkpoint_seconds": 1, "balance": False}  # nobody idles
    job = start(*faults, epochs=150, num_workers=3, patient_from=1, settings=settings)
    assert job.wait(240) == 0, job.console
    assert_exact(job, epochs=150, workers=names)
    assert job.console.count("was ended by SIGKILL; the job") == KILLS
    assert job.console.count(": restart 1 in 1 s") + job.console.count(": restart 2 in") == KILLS
    numbers = {line[1] for line in job.trace()}
    assert numbers == set(range(1, 150 * 4 + 1))
    assert job.longest_gap_seconds() < 15  # half of what Gloo waits for
