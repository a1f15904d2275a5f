"""What is read without torch's loader is what that would have read, and leaves as much behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from hetero_hvd.worker.data.collate import DirectLoader, fetching

ROWS = torch.arange(24.0).view(8, 3)


class Numbers(Dataset):
    """One number after the other."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return float(index), torch.rand(())


class Batches(Numbers):
    """Several at once."""

    def __getitems__(self, indices):
        return [self[index] for index in reversed(indices)]


DATASETS = {
    "rows": TensorDataset(ROWS, torch.arange(8)),
    "rows that do not lie side by side": TensorDataset(ROWS.t().contiguous().t(), ROWS[:, 0]),
    "rows of one value": TensorDataset(torch.zeros(1, 2, dtype=torch.bfloat16).expand(8, 2)),
    "a part of a part of rows": Subset(
        Subset(TensorDataset(ROWS, torch.arange(8)), [7, 6, 5, 4, 0, 1, 2, 3]), range(8)
    ),
    "a part of samples": Subset(Numbers(), torch.arange(7, -1, -1).tolist()),
    "samples": Numbers(),
    "samples, several at once": Batches(),
}
INDICES = {
    "in order": range(2, 6),
    "shuffled": np.array([5, 0, 7]),
    "from the end": [-1, 0, -8],
    "one": range(7, 8),
}


@pytest.mark.parametrize("indices", INDICES)
@pytest.mark.parametrize("dataset", DATASETS)
def test_a_batch_is_that_of_torchs_loader(dataset, indices):
    """With the same strides, in memory of its own, and random numbers go on alike."""
    data, asked = DATASETS[dataset], INDICES[indices]
    torch.manual_seed(1)
    (expected,) = DataLoader(data, batch_sampler=[list(map(int, asked))])
    then = torch.rand(())
    torch.manual_seed(1)
    read, collate = fetching(data, torch.utils.data.default_collate)
    asked = asked if isinstance(data, TensorDataset) else list(map(int, asked))
    (found,) = DirectLoader(read, [asked], collate, None)
    assert torch.equal(torch.rand(()), then)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
    if isinstance(data, TensorDataset):
        kept = data.tensors[0].clone()
        found[0].fill_(9.0)
        assert torch.equal(data.tensors[0], kept)


@pytest.mark.parametrize("index", [8, -9])
def test_there_is_no_row_beyond_the_last(index):
    """As everywhere in torch, that is an IndexError."""
    read, collate = fetching(DATASETS["rows"], torch.utils.data.default_collate)
    with pytest.raises(IndexError):
        list(DirectLoader(read, [[0, index]], collate, None))


def test_an_empty_part_is_no_batch():
    """A worker may have no samples of a step."""
    for data in DATASETS.values():
        read, collate = fetching(data, torch.utils.data.default_collate)
        assert list(DirectLoader(read, [range(3, 3)], collate, None)) == [None]
