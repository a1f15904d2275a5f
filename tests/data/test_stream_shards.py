"""A stream with shards is read in parts: each sample once, by whoever needs it."""

import copy
import importlib
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler

from hetero_hvd.core.data import shards as division
from hetero_hvd.core.data.file_sets import differing
from hetero_hvd.data import BlockShuffle, StreamShards
from hetero_hvd.data.listing import opened_files
from hetero_hvd.data.stream_shards import check_places, shards_in
from hetero_hvd.errors import MalformedDataError, UserError
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.data.samplers import Sampling
from tests.data.streams import WITH_POSITIONS, ShardedStream, numbered

LENGTHS = [5, 1, 6, 0, 4]


class Unsharded(IterableDataset):
    """A stream in one piece."""

    def __iter__(self):
        return iter(range(5))


@pytest.fixture(autouse=True)
def nothing_read():
    """Nothing is read yet."""
    ShardedStream.num_read = 0


def test_samples_are_numbered_through_and_found_in_any_order():
    """Forwards, backwards, and from the end."""
    found = StreamShards(numbered(LENGTHS), LENGTHS)
    assert len(found) == 16
    assert found.__getitems__(list(range(16))) == list(range(16))
    assert ShardedStream.num_read == 16
    assert found.__getitems__([15, 4, 5, 0, 0, -1, 11]) == [15, 4, 5, 0, 0, 15, 11]
    for index in (16, -17):
        with pytest.raises(IndexError):
            found[index]


def test_lengths_are_counted_if_need_be_and_can_be_kept(caplog):
    """The count is told of, as it reads everything."""
    with caplog.at_level(logging.WARNING):
        found = StreamShards(numbered(LENGTHS))
    assert found.lengths == LENGTHS
    assert ShardedStream.num_read == 16
    assert "5 shards are counted, by reading all of them" in caplog.text
    caplog.clear()
    StreamShards(numbered(LENGTHS), found.lengths)
    assert not caplog.text
    assert ShardedStream.num_read == 16


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_loader_s_processes_read_all(num_workers):
    """Where a stream gives each process its part only, a shard is whole."""
    found = StreamShards(numbered(LENGTHS), LENGTHS)
    loader = DataLoader(
        found,
        batch_size=4,
        sampler=found.sampler(4),
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    numbers = [int(number) for batch in loader for number in batch]
    assert sorted(numbers) == list(range(16))


def test_a_shuffled_order_is_that_of_the_global_generator():
    """The trainer seeds it for each epoch; without shuffling it is always the same."""
    found = StreamShards(numbered([4] * 8), [4] * 8)
    orders = []
    for seed in (1, 1, 2):
        np.random.seed(seed)  # noqa: NPY002 - as the trainer does
        orders.append(list(found.sampler(8)))
    assert orders[0] == orders[1] != orders[2]
    assert list(found.sampler(8, shuffle=False)) == list(found.sampler(8, shuffle=False))
    assert len(found.sampler(8)) == 32


def test_workers_read_their_shards_and_little_else():
    """With shares of 1, 2 and 5 of 8: together little more than all; of a stream three times."""
    lengths, batch = [40] * 8, 16
    workers = [StreamShards(numbered(lengths), lengths) for _ in range(3)]
    order = list(workers[0].sampler(batch, shuffle=False))
    found = []
    for start in range(0, 320, batch):
        part = order[start : start + batch]
        sizes = division.divide(batch, [2, 4, 10])
        for rank, worker in enumerate(workers):
            found += worker.__getitems__(
                [part[i] for i in division.slice_of(range(len(part)), sizes, rank)]
            )
    assert sorted(found) == list(range(320))
    assert ShardedStream.num_read == 320


def test_a_loader_s_process_opens_shards_of_its_own():
    """An open shard does not travel."""
    found = StreamShards(numbered(LENGTHS), LENGTHS)
    assert found[3] == 3
    again = copy.deepcopy(found)
    assert again[2] == 2
    assert found[4] == 4


@pytest.mark.parametrize(
    ("stream", "lengths", "words"),
    [
        (numbered([5]), None, "cannot be divided: it must have two shards or more"),
        (Unsharded(), None, "cannot be divided"),
        ([1, 2, 3], None, "cannot be divided"),
        (numbered([0, 0]), None, "there is no sample in its 2 shards"),
        (numbered([2, 2]), [4], "must be a list of 2 numbers"),
        (numbered([2, 2]), 4, "must be a list of 2 numbers"),
        (numbered([2, 2]), [2, -2], "must be a whole number >= 0"),
        (numbered([2, 2]), [2, "2"], "must be a whole number >= 0"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(stream, lengths, words):
    """With what it must be."""
    with pytest.raises(UserError, match=words) as caught:
        StreamShards(stream, lengths)
    assert "\n" not in str(caught.value)


def test_a_shard_that_has_become_shorter_is_named():
    """Nothing takes the place of a sample."""
    found = StreamShards(numbered([3, 3]), [3, 4])
    with pytest.raises(MalformedDataError, match="shard 1: has no sample 3, and should have 4"):
        found[6]


def test_a_shard_that_has_become_longer_is_named():
    """No sample is left out in silence, whichever comes first."""
    found = StreamShards(numbered([3, 3]), [3, 2])
    assert found[3] == 3
    with pytest.raises(MalformedDataError, match="shard 1: has more samples than the 2 it should"):
        found[4]


def test_lengths_are_compared_with_those_of_other_workers():
    """As the files of other data sets: a worker with other lengths is refused by name."""
    sets = []
    for lengths in ([3, 3], [3, 3], [3, 2]):
        StreamShards(numbered(lengths), lengths)
        sets.append(opened_files()[-1])
    assert sets[0] == sets[1]
    found = differing({WorkerId(name, 0): [each] for name, each in zip("abc", sets, strict=True)})
    assert list(found) == [WorkerId("c", 0)]
    assert "shard 1 of 2" in found[WorkerId("c", 0)]


SHUFFLED = {
    "not at all": (None, True),
    "without a seed": (SimpleNamespace(_original_seed=None), False),
    "with a seed": (SimpleNamespace(_original_seed=0), True),
    "as an earlier version of datasets": (SimpleNamespace(), True),
}


@pytest.mark.parametrize(("shuffling", "is_taken"), SHUFFLED.values(), ids=SHUFFLED.keys())
def test_a_stream_that_is_shuffled_otherwise_on_each_worker_is_refused(shuffling, is_taken):
    """Its shards would have other samples in each place."""
    stream = numbered([2, 2])
    stream._shuffling = shuffling
    with nullcontext() if is_taken else pytest.raises(UserError, match=r"say shuffle\(seed=0"):
        StreamShards(stream)


SAMPLERS = {
    "its own": (lambda found: {"sampler": found.sampler(4)}, True),
    "none": (lambda _: {}, True),
    "torch's": (lambda _: {"shuffle": True}, False),
    "a subset": (lambda _: {"sampler": SubsetRandomSampler([0, 5])}, False),
    "one of the script's": (lambda found: {"sampler": BlockShuffle(found, 2)}, False),
    "batches": (lambda found: {"batch_sampler": [[0], [1, 2]] * len(found)}, False),
}


@pytest.mark.parametrize(("given", "is_taken"), SAMPLERS.values(), ids=SAMPLERS.keys())
def test_a_sampler_that_would_read_shards_again_is_refused(given, is_taken):
    """By its name, with what to say."""
    found = StreamShards(numbered(LENGTHS), LENGTHS)
    options = {"batch_size": 4} | given(found)
    if "batch_sampler" in options:
        del options["batch_size"]
    with nullcontext() if is_taken else pytest.raises(UserError, match=r"sampler=dataset\.sampler"):
        Sampling(DataLoader(found, **options))


@pytest.mark.parametrize(("stream", "number"), [(numbered([1, 1]), 2), (Unsharded(), 1), (3, 1)])
def test_shards_are_counted(stream, number):
    """What cannot be divided has one."""
    assert shards_in(stream) == number


def _in_shards(shards):
    for start, length in shards:
        for number in range(start, start + length):
            yield {"number": number}


def test_a_stream_of_datasets_is_one():
    """Where that package is installed."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        pytest.skip("datasets is not installed")
    shards = [[0, 5], [5, 1], [6, 6], [12, 4]]
    stream = datasets.IterableDataset.from_generator(_in_shards, gen_kwargs={"shards": shards})
    found = StreamShards(stream)
    assert found.lengths == [5, 1, 6, 4]
    loader = DataLoader(found, batch_size=4, sampler=found.sampler(4), num_workers=2)
    assert sorted(n for batch in loader for n in batch["number"].tolist()) == list(range(16))


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (numbered([2, 3, 4]), "or its 3 shards in hetero_hvd.data.StreamShards"),
        (numbered([5]), "or a stream of several shards"),
        (Unsharded(), "train: Unsharded is an IterableDataset, which cannot be read from any"),
    ],
    ids=["shards", "one shard", "no shards"],
)
def test_a_stream_as_it_is_can_be_refused(stream, words):
    """By who is to divide it, with what is allowed; the table is in integrations/test_streams."""
    with pytest.raises(UserError, match=words) as caught:
        check_places(stream, "train", is_alone=False)
    assert "\n" not in str(caught.value)
    check_places(stream, "train", is_alone=True)


@pytest.mark.parametrize("make", WITH_POSITIONS.values(), ids=WITH_POSITIONS)
def test_what_has_positions_is_not_refused(make):
    """In a job or alone."""
    for is_alone in (True, False):
        check_places(make([1.0, 2.0, 3.0]), "train", is_alone=is_alone)
