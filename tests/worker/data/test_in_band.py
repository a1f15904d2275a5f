"""What loader processes send is what the script's `collate_fn` has made."""

from __future__ import annotations

from operator import itemgetter

import pytest
import torch
from torch.utils.data import DataLoader

from hetero_hvd.worker.data.in_band import SMALL_BYTES, InBand

ROWS = torch.arange(24.0).view(4, 6)
BATCHES = [
    [ROWS, torch.tensor([1, 2])],
    {"image": ROWS.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), "name": "one"},
    (torch.ones(3, dtype=torch.bfloat16), torch.tensor([True, False]), torch.tensor(2 + 1j)),
    [ROWS, ROWS[:, 1:], ROWS.t(), ROWS],
    [torch.empty(0, 3), torch.tensor(5), ROWS[:0], None],
    [torch.zeros(SMALL_BYTES), torch.ones(2)],
    [ROWS.clone().share_memory_(), torch.tensor([1 + 1j, 2]).imag],
    [torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)],
]


@pytest.fixture(scope="module")
def received():
    """All batches, as they come out of one loader process."""
    collate = InBand(itemgetter(0))
    return list(DataLoader(BATCHES, num_workers=1, collate_fn=collate))


@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_a_batch_arrives_as_it_was_made(received, number):
    """With types, strides and what is shared between its tensors, and it may be written to."""
    sent, found = BATCHES[number], received[number]
    assert type(found) is type(sent)
    if isinstance(sent, dict):
        assert list(found) == list(sent)
        sent, found = sent.values(), found.values()
    places: dict[int, int] = {}
    for one, other in zip(sent, found, strict=True):
        assert type(other) is type(one)
        if not isinstance(one, torch.Tensor):
            assert other == one
            continue
        assert (other.dtype, other.layout, other.shape) == (one.dtype, one.layout, one.shape)
        assert other.requires_grad == one.requires_grad
        assert torch.equal(other, one)
        assert other.stride() == one.stride()
        sends, gets = one.untyped_storage().data_ptr(), other.untyped_storage().data_ptr()
        assert places.setdefault(sends, gets) == gets
        with torch.no_grad():
            other.copy_(one)


def test_small_tensors_are_not_shared(received):
    """Also where `default_collate` has got shared memory for them; large ones are, as in torch."""
    assert not any(received[number][0].is_shared() for number in (0, 6))
    assert received[5][0].is_shared()
