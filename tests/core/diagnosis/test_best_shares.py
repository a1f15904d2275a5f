"""What other shares could gain, beside all divisions that there are."""

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.diagnosis.best_shares import best_seconds, best_seconds_in_pieces
from hetero_hvd.messages import WorkerId
from tests.core.diagnosis.test_findings import row

PIECES = st.integers(min_value=1, max_value=4)


@st.composite
def jobs(draw):
    """Rows of two or three workers, with whole pieces each, and how large a piece is."""
    undivided = draw(st.integers(min_value=1, max_value=5))
    rows = {}
    for number in range(draw(st.integers(min_value=2, max_value=3))):
        compute, other = draw(st.floats(0.01, 1.0)), draw(st.floats(0.0, 0.5))
        measured = row(draw(PIECES) * undivided, compute=compute)
        rows[WorkerId(f"w{number}", 0)] = msgspec.structs.replace(measured, other_seconds=other)
    return rows, undivided


@given(jobs())
def test_no_division_in_pieces_is_faster(job):
    """And one is as fast; without pieces all could be faster still."""
    rows, undivided = job
    times = {worker: each.own_seconds for worker, each in rows.items()}
    total = sum(each.local_batch_size for each in rows.values()) // undivided

    def seconds(numbers):
        ends = []
        for number, (worker, each) in zip(numbers, rows.items(), strict=True):
            fixed = each.other_seconds
            per_sample = (times[worker] - fixed) / each.local_batch_size
            ends.append(fixed + number * undivided * per_sample)
        return max(ends)

    divisions = product(range(total + 1), repeat=len(rows))
    best = min(seconds(numbers) for numbers in divisions if sum(numbers) == total)
    found = best_seconds_in_pieces(rows, times, undivided)
    assert found == pytest.approx(best)
    assert best_seconds(rows, times) <= found * (1 + 1e-9)
