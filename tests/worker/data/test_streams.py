"""A process alone reads its stream as torch would, and goes on where training stands."""

import pytest
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hetero_hvd.worker.data.share_loader import ShareLoader
from hetero_hvd.worker.data.streams import read_stream


class Counting(IterableDataset):
    """Gives another epoch other numbers; of several loader processes each its part."""

    epoch = 2

    def set_epoch(self, epoch):
        """Of the numbers."""
        self.epoch = epoch

    def __iter__(self):
        found = get_worker_info()
        first, step = (0, 1) if found is None else (found.id, found.num_workers)
        return iter(range(10 * self.epoch + first, 10 * self.epoch + 5, step))


@pytest.mark.parametrize(
    ("skipped", "batches"),
    [(0, [[20, 21], [22, 23], [24]]), (2, [[22, 23], [24]]), (5, []), (9, [])],
)
def test_it_goes_on_behind_what_was_used(skipped, batches):
    """From any sample on, in batches of any size."""
    assert list(read_stream(DataLoader(Counting(), 3), 2, skipped)) == batches


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_samples_come_in_the_order_of_torch(num_workers):
    """Also from the processes of a loader."""
    loader = DataLoader(Counting(), 2, num_workers=num_workers)
    expected = [n for batch in loader for n in batch.tolist()]
    assert sorted(expected) == list(range(20, 25))
    assert [n for batch in read_stream(loader, 3) for n in batch] == expected


@pytest.mark.parametrize(
    ("drop_last", "steps"), [(False, [[30, 31, 32], [33, 34]]), (True, [[30, 31, 32]])]
)
def test_accumulated_batches_are_a_step(drop_last, steps):
    """Of the epoch that is asked for; an incomplete one is left out if the loader says so."""
    loader = DataLoader(Counting(), 1, drop_last=drop_last, collate_fn=list)
    found = ShareLoader(loader, accumulation_steps=3).slices(3, 0, lambda _: ((3,), 0))
    assert [part.batch for part in found] == steps
