"""A worker that is asked to end has the time that its steps take."""

from types import SimpleNamespace

import pytest

from hetero_hvd.driver.workers.grace import Grace
from hetero_hvd.driver.workers.worker_process import GRACE_SECONDS
from hetero_hvd.messages import StepsTimed


def timed(seconds):
    """An exchange of two workers; of the message only the rows matter here."""
    rows = tuple(SimpleNamespace(step_seconds=value) for value in (seconds / 2, seconds))
    return StepsTimed(
        rendezvous_id=1, step=1, epoch=0, loss=0.0, timings=rows, exchange_seconds=0.0
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0.02, 0.03], [GRACE_SECONDS]),
        ([9.0, 9.5], [GRACE_SECONDS + 18.0]),
        ([0.1, 9.0, *[0.1] * 8], [GRACE_SECONDS + 18.0, GRACE_SECONDS + 0.2]),
    ],
)
def test_the_grace_follows_the_recent_steps(steps, expected):
    """It is told when it has changed by a quarter, and shrinks when the steps do."""
    told = []
    slots = SimpleNamespace(grace_seconds=GRACE_SECONDS)

    def allow(seconds):
        told.append(seconds)
        slots.grace_seconds = seconds

    slots.allow = allow
    grace = Grace(slots)
    for seconds in steps:
        grace.observe(0.0, timed(seconds))
    assert told == [value for value in expected if value != GRACE_SECONDS] == pytest.approx(told)
