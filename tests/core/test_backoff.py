"""Times that double; those who wait for days count on."""

import pytest

from hetero_hvd.core.backoff import doubled


@pytest.mark.parametrize(
    ("count", "seconds"),
    [(0, 5.0), (1, 10.0), (3, 40.0), (4, 60.0), (1023, 60.0), (1024, 60.0), (10**9, 60.0)],
)
def test_it_doubles_up_to_its_limit(count, seconds):
    """However often."""
    assert doubled(5.0, count, 60.0) == seconds


@pytest.mark.parametrize(("first", "most"), [(0.0, 60.0), (90.0, 60.0)])
def test_the_limit_holds_for_the_first_time_too(first, most):
    """Also where there is nothing to double."""
    assert doubled(first, 2000, most) == min(first, most)
