"""A program that sends too much is held up, whatever it sends, and nobody else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.recording.foreign import DAY_SECONDS, IngestAllowance, IngestLimits

SMALL = IngestLimits(
    samples_per_second=2.0, bytes_per_second=1000.0, burst_seconds=10.0, bytes_per_day=50_000.0
)
ASKED = {
    "as much as a burst holds": ([(0.0, 20, 0)], [0]),
    "one sample more": ([(0.0, 20, 0), (0.0, 2, 0)], [0, 1]),
    "when it has filled again": ([(0.0, 20, 0), (1.0, 2, 0)], [0, 0]),
    "bytes are counted, too": ([(0.0, 1, 10_000), (0.0, 1, 3000)], [0, 3]),
    "what is refused costs nothing": ([(0.0, 20, 0), (0.0, 9, 0), (0.5, 1, 0)], [0, 4.5, 0]),
    "a day's worth, as slowly as it may": (
        [(100.0 * n, 1, 10_000) for n in range(6)],
        [0, 0, 0, 0, 0, DAY_SECONDS / 5 - 500],
    ),
}


@pytest.mark.parametrize(("requests", "waits"), ASKED.values(), ids=ASKED)
def test_who_sends_too_much_waits(requests, waits):
    """So long as it takes."""
    allowance = IngestAllowance(limits=SMALL)
    found = [allowance.wait_seconds(samples, size, at) for at, samples, size in requests]
    assert found == pytest.approx(waits)


@given(st.lists(st.tuples(st.floats(0, 3600), st.integers(1, 30), st.integers(0, 9999))))
def test_no_order_of_requests_gets_more_than_the_limits(requests):
    """In any time: what flows on, and once what a burst holds."""
    allowance, now, samples, size = IngestAllowance(limits=SMALL), 0.0, 0, 0
    for pause, num_samples, num_bytes in requests:
        now += pause
        if not allowance.wait_seconds(num_samples, num_bytes, now):
            samples, size = samples + num_samples, size + num_bytes
    assert samples <= SMALL.samples_per_second * (SMALL.burst_seconds + now) + 1e-6
    assert size <= SMALL.bytes_per_second * (SMALL.burst_seconds + now) + 1e-6
    assert size <= SMALL.bytes_per_day * (1 + now / DAY_SECONDS) + 1e-3
