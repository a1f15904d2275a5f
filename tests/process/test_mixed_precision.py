"""Hugging Face's Trainer in float16 and bfloat16 on workers that are CPUs: all scale alike."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("transformers")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PRECISIONS = ("single", "float16", "float16, not scaled", "bfloat16")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, start_workers):
    """What two workers found, and their output folder."""
    folder = tmp_path_factory.mktemp("mixed")
    given = {"timeout_seconds": 250, "output": str(folder)}
    return start_workers(folder, "mixed_precision", 2, **given), folder


@pytest.mark.parametrize("precision", PRECISIONS)
def test_all_workers_have_the_same_after_each_step(trained, precision):
    """Scale, rate and weights, whoever had a part of the step; and the training learns."""
    ranks, _ = trained
    one, other = (rank[precision] for rank in ranks)
    assert one["steps"] == other["steps"]
    assert len(one["steps"]) == 32
    losses = max((rank[precision]["losses"] for rank in ranks), key=len)
    assert losses[-1] < 0.1 * losses[0]


def test_a_scale_that_is_too_large_falls_and_its_steps_are_skipped_by_all(trained):
    """They change no weight and advance no schedule."""
    ranks, folder = trained
    steps = ranks[0]["float16"]["steps"]
    assert steps[0][:2] == [2.0**126, [0.1, 0.1]]
    num_skipped = 1
    for (scale, rate, weights), (next_scale, next_rate, next_weights) in pairwise(steps):
        is_skipped = next_scale == scale / 2
        assert is_skipped or next_scale == scale
        assert (next_weights == weights) == is_skipped
        assert (next_rate == rate) == is_skipped
        num_skipped += is_skipped
    assert 1 < num_skipped < 16
    assert (folder / "float16" / "checkpoint-32" / "scaler.pt").exists()


@pytest.mark.parametrize("precision", ["single", "float16, not scaled", "bfloat16"])
def test_nothing_else_is_scaled(trained, precision):
    """A scaler that is disabled counts as none."""
    assert {scale for scale, _, _ in trained[0][0][precision]["steps"]} == {None}


def test_a_cpu_computes_float16_in_single_precision(trained):
    """As plain transformers does: without a scaler the numbers are those of single precision."""
    rank = trained[0][0]
    assert rank["float16, not scaled"] == rank["single"]
    assert rank["bfloat16"] != rank["single"]
