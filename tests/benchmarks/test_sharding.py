"""What the benchmark of a state in parts computes, and that its workload trains."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from benchmarks.sharding.deep import MasterAdamW, sent_bytes
from benchmarks.sharding.largest import KINDS, PRECISION, largest
from hetero_hvd.worker.shards.element_wise import prove_element_wise


@pytest.mark.parametrize("true", [1, 2, 10, 64, 107, 1000])
@pytest.mark.parametrize("guess", [1, 60, 100, 900])
def test_the_search_finds_the_largest(true, guess):
    """To its precision, or to 1, wherever it begins."""
    asked = []
    found = largest(lambda number: asked.append(number) or number <= true, guess)
    assert found <= true <= found + max(1, PRECISION * found)
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(("kind", "ratio"), [(KINDS[0], 5 / 3), (KINDS[1], 2.0)])
def test_the_arithmetic_is_that_of_two_holders(kind, ratio):
    """Of memories 24 : 12 : 8; with equal memories of two nothing is won."""
    rooms = [24.0, 12.0, 8.0]
    assert kind.largest_in_parts(rooms) / kind.largest(rooms) == pytest.approx(ratio, rel=1e-4)
    assert kind.largest_in_parts([8.0, 8.0]) == pytest.approx(kind.largest([8.0, 8.0]), rel=1e-4)


def test_bytes_are_those_of_rings():
    """A sum of n bytes over k is sent 2 (k - 1) / k times by each, a part of an allgather k - 1."""
    assert sent_bytes(Counter(allreduce=300, allgather=100, alltoall=7), 3) == 400 + 200 + 7


def test_the_masters_can_be_cut():
    """Else there was nothing to measure; in float32 it is AdamW."""
    torch.manual_seed(0)
    own, plain = (torch.nn.Linear(8, 4) for _ in range(2))
    plain.load_state_dict(own.state_dict())
    optimizers = (
        MasterAdamW(own.parameters(), lr=0.01),
        torch.optim.AdamW(plain.parameters(), lr=0.01),
    )
    half = torch.nn.Linear(8, 4).bfloat16()
    assert prove_element_wise(MasterAdamW(half.parameters())).num_bytes == 12
    for _ in range(3):
        for model, optimizer in zip((own, plain), optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(own.state_dict(), plain.state_dict())
