"""What an agent says of its node."""

from __future__ import annotations

from hetero_hvd.agent.service import summary_of


def test_a_node_sums_up_its_devices():
    """GPUs by model, else the cores that it may use; never more than an advert holds."""
    assert summary_of([], 3.5) == "3.5 cores"
    assert summary_of(["A", "B", "A"], 8) == "2 x A, 1 x B"
    assert len(summary_of([f"GPU {n}" for n in range(99)], 8)) == 128
