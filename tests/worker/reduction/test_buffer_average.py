"""Buffers of any kind move by the mean of the workers' changes, weighted by their samples."""

import pytest
import torch

from hetero_hvd.worker.model.registered import Registered
from hetero_hvd.worker.reduction.buffer_average import BufferAverage

SAMPLES = (3, 5)
NAN = float("nan")


class Together:
    """A rendezvous of two workers that adds up what each of them gives."""

    size = 2

    def __init__(self):
        self.sums = []

    def sum_async(self, numbers, _):
        """Add it to that of the other one."""
        self.sums.append(numbers)


def model(buffers):
    """With these buffers, and one that is not there."""
    made = torch.nn.Module()
    for number, buffer in enumerate(buffers):
        made.register_buffer(f"buffer{number}", None if buffer is None else buffer.clone())
    return made


def add(buffer, rank):
    """What a forward pass of a worker makes of a buffer."""
    return buffer + torch.full_like(buffer, rank + 1)


def written(place, name, rank):
    """In place."""
    getattr(place, name).copy_(add(getattr(place, name), rank))


def replaced(place, name, rank):
    """By another tensor."""
    setattr(place, name, add(getattr(place, name), rank))


def by_one_alone(place, name, rank):
    """The other worker leaves it alone."""
    if rank:
        written(place, name, rank)


def left_alone(place, name, rank):
    """By all."""


MEAN = (3 * 1 + 5 * 2) / 8
WAYS = {written: MEAN, replaced: MEAN, by_one_alone: 5 * 2 / 8, left_alone: 0.0}
KINDS = {
    "float32": torch.tensor([[0.5, -0.0], [2.0, 3.0]]),
    "float64": torch.tensor([0.25], dtype=torch.float64),
    "bfloat16": torch.tensor([1.0, 8.0], dtype=torch.bfloat16),
    "complex64": torch.tensor([1 + 2j, 3j]),
    "int64": torch.tensor(7),
    "bool": torch.tensor([False, True]),
    "empty": torch.zeros(0),
    "nothing": None,
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_kind_moves_by_the_weighted_mean(way):
    """Beside all other kinds, in several steps; no worker's buffers change before that."""
    workers = [model(KINDS.values()) for _ in SAMPLES]
    averages = [BufferAverage() for _ in SAMPLES]
    registered = [Registered(worker) for worker in workers]
    for step in range(1, 4):
        together, found = Together(), []
        for rank, (worker, average) in enumerate(zip(workers, averages, strict=True)):
            registered[rank].look()
            average.remember(registered[rank].places)
            before = {name: each.clone() for name, each in worker.named_buffers()}
            for name in before:
                way(worker, name, rank)
            found.append(average.seal(together, SAMPLES[rank]))
            found[-1].start(together)
            assert all(torch.equal(each, before[name]) for name, each in worker.named_buffers())
        total = sum(together.sums)
        for average, sealed in zip(averages, found, strict=True):
            sealed.flat = total
            average.write_back(sealed, sum(SAMPLES))
        for worker in workers:
            for number, (kind, start) in enumerate(KINDS.items()):
                now = getattr(worker, f"buffer{number}")
                if start is None or kind == "bool":
                    continue
                assert now.dtype == start.dtype
                moved = step * WAYS[way]
                if kind == "int64":
                    moved = step * round(WAYS[way])
                torch.testing.assert_close(now, (start + moved).to(start), rtol=0.02, atol=0)


def test_who_has_numbers_first_gives_them_to_all():
    """Where NaN or infinity was, their mean is there, and NaN that stays is no change."""
    averages, workers = [BufferAverage() for _ in SAMPLES], []
    together, found = Together(), []
    for rank, average in enumerate(averages):
        workers.append(model([torch.tensor([NAN, torch.inf, 1.0]), torch.tensor([NAN])]))
        registered = Registered(workers[-1])
        registered.look()
        average.remember(registered.places)
        if rank:
            workers[-1].buffer0.copy_(torch.tensor([4.0, 6.0, 1.0]))
        found.append(average.seal(together, SAMPLES[rank]))
        found[-1].start(together)
    for average, sealed in zip(averages, found, strict=True):
        sealed.flat = sum(together.sums)
        average.write_back(sealed, sum(SAMPLES))
    for worker in workers:
        assert worker.buffer0.tolist() == [4.0, 6.0, 1.0]
        assert worker.buffer1.isnan().all()
