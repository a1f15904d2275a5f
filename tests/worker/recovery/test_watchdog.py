"""A worker that hangs in its own part of a step is found; one that compiles is not."""

from types import SimpleNamespace

import pytest

from hetero_hvd.worker.recovery.watchdog import FEWEST_STEPS, Watchdog

STEP = {"data_wait": 0.01, "forward": 0.1, "backward": 0.1}
CASES = {
    "a forward pass of a known size": ("forward", (32, 8), True),
    "the first pass of another share": ("forward", (48, 8), False),
    "the first pass of another micro-batch": ("backward", (32, 16), False),
    "a read, whatever the size": ("data_wait", (48, 8), True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_passes_with_a_new_size_are_not_judged(case):
    """They compile, or try out kernels, each time that a plan gives a worker another share."""
    phase, shape, is_overdue = CASES[case]
    under_way = [(32, 8)]
    clock = SimpleNamespace(current=(phase, 100.0))
    watchdog = Watchdog(clock, lambda: under_way[0], floor_seconds=3.0)
    for _ in range(FEWEST_STEPS):
        watchdog.learn(STEP)
    under_way[0] = shape
    assert watchdog.overdue(102.5) is None
    assert (watchdog.overdue(104.5) is not None) == is_overdue
    watchdog.learn(STEP)
    assert watchdog.overdue(104.5) is not None
