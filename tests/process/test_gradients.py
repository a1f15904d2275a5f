"""Law: the reduced gradient is that of one process on the joined batch, for any shares."""

from __future__ import annotations

import pytest

TOLERANCE = {"torch.float32": 1e-6, "torch.float64": 1e-12}


@pytest.mark.process
@pytest.mark.parametrize("num_workers", [1, 2, pytest.param(4, marks=pytest.mark.matrix)])
def test_gradient_equals_one_process_on_the_joined_batch(run_workers, num_workers):
    """By samples and by tokens, in fp32 and fp64, with empty shares and all-masked shares."""
    ranks = run_workers("gradients", num_workers, cases=24)
    cases = [case for rank in ranks for case in rank]
    assert len(cases) == 24 * num_workers
    wrong = [case for case in cases if not case["error"] <= TOLERANCE[case["dtype"]]]
    assert not wrong
    if num_workers > 1:
        assert any(0 in case["shares"] for case in cases)


@pytest.mark.process
@pytest.mark.parametrize("num_workers", [2, 3])
def test_sums_are_right_whatever_their_size(run_workers, num_workers):
    """Small ones go directly, others round the ring; all workers have the same bits."""
    reports = run_workers("sums", num_workers)
    assert [report["wrong"] for report in reports] == [[]] * num_workers
    assert len({report["bits"] for report in reports}) == 1
