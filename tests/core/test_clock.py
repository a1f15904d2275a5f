"""The offset of a clock is known to within half a round trip, whatever the two ways take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.clock import ClockOffset, best, best_of_newest, offset_of

DELAYS = st.floats(0, 5)


@given(offset=st.floats(-1e5, 1e5), there=DELAYS, work=DELAYS, back=DELAYS)
def test_the_true_offset_is_within_the_uncertainty(offset, there, work, back):
    """However unequal the delays of question and answer are."""
    asked = 1.7e9
    received = asked + there + offset
    found = offset_of(
        asked_at=asked,
        received_at=received,
        replied_at=received + work,
        heard_at=asked + there + work + back,
    )
    rounding = 1e-5  # of times since 1970 in float64
    assert abs(found.seconds - offset) <= found.uncertainty_seconds + rounding
    assert found.uncertainty_seconds == pytest.approx((there + back) / 2, abs=rounding)
    assert found.least_seconds <= abs(offset) + rounding


def test_the_fastest_exchange_counts():
    """It bounds the offset best."""
    slow = ClockOffset(seconds=1.0, uncertainty_seconds=0.5)
    fast = ClockOffset(seconds=0.7, uncertainty_seconds=0.1)
    assert best([slow, fast, slow]) is fast
    assert (slow.least_seconds, fast.least_seconds) == (0.5, pytest.approx(0.6))


def measured(*found):
    """Offsets and their uncertainties, the oldest first."""
    return [ClockOffset(seconds=s, uncertainty_seconds=u) for s, u in found]


HISTORIES = {
    "one": (measured((1.0, 0.5)), 0),
    "the fastest of all": (measured((1.0, 0.5), (0.9, 0.1), (1.2, 0.4)), 1),
    "the clock has jumped": (measured((0.9, 0.1), (1.0, 0.2), (100.0, 5.0)), 2),
    "after a while": (measured((0.9, 0.1), (100.0, 5.0), (99.0, 1.0), (98.0, 2.0)), 2),
    "it has drifted": (measured((1.0, 0.1), (1.1, 0.1), (1.3, 0.1)), 2),
}


@pytest.mark.parametrize(("offsets", "chosen"), HISTORIES.values(), ids=HISTORIES)
def test_what_contradicts_the_newest_counts_no_more(offsets, chosen):
    """A clock that stood still with its machine is known anew at the next exchange."""
    assert best_of_newest(offsets) is offsets[chosen]
