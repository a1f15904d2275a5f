"""A slow worker is lost while the others wait for it, with steps under way: they go on exactly."""

import pytest

from benchmarks.faults.matrix import run_once
from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

CELLS = [
    ("SIGSTOP", "bound 1"),
    pytest.param("kill", "bound 4", marks=pytest.mark.matrix),
    ("kill", "wait-free"),
    pytest.param("kill", "reproducible", marks=pytest.mark.matrix),
]
"""`scripts/chaos --matrix` has all of them, and many times."""


@pytest.mark.parametrize(("kind", "mode"), CELLS, ids=lambda word: word.replace(" ", "-"))
def test_late_gradients_survive_a_loss(tmp_path, kind, mode):
    """The job ends well without the worker, and each sample was used once in each epoch."""
    outcome = run_once(tmp_path, kind, mode, seed=1)
    assert outcome.survived, outcome.console
    assert outcome.exact, outcome.console
    assert 0 < outcome.seconds < 15  # half of what Gloo waits for
    wait_until(lambda: not processes_of(tmp_path), 10, "the end of all processes")
