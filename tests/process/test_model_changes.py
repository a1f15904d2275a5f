"""A model that changes while real workers train it, some of them without a share."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(170)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, start_workers):
    """What three workers found."""
    return start_workers(
        tmp_path_factory.mktemp("changes"), "model_changes", 3, timeout_seconds=150
    )


def test_masks_stay_and_a_new_block_is_trained(ranks):
    """A transformer with a causal mask ends where one process ends, on every worker."""
    alone = ranks[0]["alone"]
    causal = [[int(column <= row) for column in range(5)] for row in range(5)]
    for mode in ("synchronous", "late"):
        assert all(rank[mode] == ranks[0][mode] for rank in ranks)
        assert ranks[0][mode]["sees"] == causal
    assert ranks[0]["synchronous"]["weights"] == pytest.approx(alone["weights"], abs=1e-5)
    assert ranks[0]["synchronous"]["mean"] == pytest.approx(alone["mean"], abs=1e-6)
    assert len(ranks[0]["late"]["weights"]) == len(alone["weights"])


def test_a_block_on_one_worker_only_is_named(ranks):
    """None waits for ever, and all are told the same."""
    assert {rank["refusal"] for rank in ranks} == {ranks[0]["refusal"]}
    assert "models differ: rank 0 has nothing else, rank 1 has blocks.1." in ranks[0]["refusal"]
