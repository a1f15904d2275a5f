"""A stream that every worker reads whole is told of, and goes on where training stands."""

import logging

import pytest
from torch.utils.data import IterableDataset

from hetero_hvd.worker.data.streams import WholeStream
from tests.data.streams import numbered


class Counting(IterableDataset):
    """Gives another epoch other numbers."""

    def set_epoch(self, epoch):
        """Of the numbers."""
        self.epoch = epoch

    def __iter__(self):
        return iter(range(10 * self.epoch, 10 * self.epoch + 5))


@pytest.mark.parametrize(
    ("stream", "num_workers", "rank", "words"),
    [
        (numbered([2, 2]), 3, 0, "each of the 3 workers reads all of it"),
        (numbered([2, 2]), 3, 0, "StreamShards divides its 2 shards"),
        (numbered([4]), 2, 0, "docs/guide/data.md"),
        (Counting(), 2, 0, "training: Counting has no places"),
        (numbered([2, 2]), 1, 0, ""),
        (numbered([2, 2]), 2, 1, ""),
    ],
)
def test_it_is_told_once_and_by_one_worker(stream, num_workers, rank, words, caplog):
    """Only where others read it, too."""
    with caplog.at_level(logging.WARNING):
        for use in ("training", "Evaluation", "Evaluation"):  # each evaluation asks anew
            WholeStream(stream, use).tell(num_workers, rank)
    assert len(caplog.records) == bool(words)
    assert words in caplog.text


@pytest.mark.parametrize(
    ("skipped", "batches"),
    [(0, [[20, 21], [22, 23], [24]]), (2, [[22, 23], [24]]), (5, []), (9, [])],
)
def test_it_goes_on_behind_what_was_used(skipped, batches):
    """Of the epoch that is asked for."""
    assert list(WholeStream(Counting(), "training").batches(2, skipped, 2)) == batches
