"""Which failures are tried again, and when."""

from __future__ import annotations

import pytest

from hetero_hvd.core.queue.healing import (
    FAILURE_CAUSES,
    FIRST_RETRY_SECONDS,
    HEALING,
    MAX_RETRY_SECONDS,
    retry_after_seconds,
)


@pytest.mark.parametrize("cause", FAILURE_CAUSES)
def test_only_what_lies_outside_of_the_job_heals(cause):
    """And only as often as was granted."""
    wait = retry_after_seconds(cause, 0, 1)
    assert wait == (FIRST_RETRY_SECONDS if cause in HEALING else None)
    assert retry_after_seconds(cause, 1, 1) is None


def test_the_wait_doubles_up_to_a_limit():
    """However often it fails."""
    waits = [retry_after_seconds("node_lost", number, 10**6) for number in (0, 1, 2, 5000)]
    assert waits == [10.0, 20.0, 40.0, MAX_RETRY_SECONDS]
