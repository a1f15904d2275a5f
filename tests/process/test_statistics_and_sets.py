"""What is computed over whole batches and sets is exact for any shares, and the same everywhere."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, start_workers):
    """What three workers found."""
    return start_workers(tmp_path_factory.mktemp("sets"), "statistics_and_sets", 3)


def test_running_mean_is_that_of_the_joined_batch(ranks):
    """A normalisation layer's running mean is one process's; all workers hold the same bits."""
    found = [rank["running_statistics"] for rank in ranks]
    assert found[0]["moved"] > 1e-2
    assert max(found[0]["errors"]) <= 1e-6
    assert all(other["buffers"] == found[0]["buffers"] for other in found)


def test_evaluation_is_exact(ranks):
    """Metrics over the set equal one process's, by samples and by weights, on every worker."""
    for epoch, *others in zip(*(rank["evaluation"] for rank in ranks), strict=True):
        assert all(other["found"] == epoch["found"] for other in others)
        assert epoch["training"] is True
        for found, expected in zip(epoch["found"], epoch["expected"], strict=True):
            assert found == pytest.approx(expected, rel=1e-7)  # accuracy is a float32
