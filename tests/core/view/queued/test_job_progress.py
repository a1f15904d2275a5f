"""What a queue is told of a job, from the events of its run."""

from __future__ import annotations

import pytest

from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.queued.job_progress import JobProgress
from tests.core.view.queued.test_reduction_meter import WORKERS, joined, timed

RATE = 32 / 0.5
ALPHA = WORKERS[:1]
MODELS = {
    "nothing has happened": ([], "", {}),
    "no step yet": ([joined(1, model="Net 1")], "", {}),
    "not told": ([joined(1), timed(1, 9, 0.0, 0.0)], "", {"alpha": RATE, "beta": RATE}),
    "a model": (
        [joined(1, model="Net 1"), timed(1, 9, 0.0, 0.0)],
        "Net 1",
        {"alpha": RATE, "beta": RATE},
    ),
    "a worker has left": (
        [
            joined(1, model="Net 1"),
            timed(1, 9, 0.0, 0.0),
            joined(2, ALPHA, model="Net 1"),
            timed(2, 19, 0.0),
        ],
        "Net 1",
        {"alpha": 2 * RATE, "beta": RATE},
    ),
    "another model: the speed of who has left is not for it": (
        [
            joined(1, model="Net 1"),
            timed(1, 9, 0.0, 0.0),
            joined(2, ALPHA, model="Net 2"),
            timed(2, 19, 0.0),
        ],
        "Net 2",
        {"alpha": 2 * RATE},
    ),
}


@pytest.mark.parametrize(("events", "model", "rates"), MODELS.values(), ids=MODELS.keys())
def test_rates_are_those_of_the_model(events, model, rates):
    """A script may train several, one after the other."""
    progress = JobProgress()
    for _, event in with_tables((0.0, each) for each in events):
        progress.observe(0.0, event)
    assert progress.facts.model == model
    assert progress.facts.rates == pytest.approx(rates)
