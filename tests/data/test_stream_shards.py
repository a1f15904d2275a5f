"""A stream with shards is read in parts: each sample once, by whoever needs it."""

import copy
import importlib
import itertools
import logging
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler

from hetero_hvd.core.data import shards as division
from hetero_hvd.core.data.file_sets import differing
from hetero_hvd.data import BlockShuffle, StreamShards
from hetero_hvd.data.listing import opened_files
from hetero_hvd.data.streams import stream_shards
from hetero_hvd.data.streams.sameness import beginning
from hetero_hvd.data.streams.stream_shards import check_places, shards_in
from hetero_hvd.errors import MalformedDataError, UnreadableError, UserError
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.data.samplers import Sampling
from tests.data.streams import WITH_POSITIONS, ShardedStream, numbered

LENGTHS = [5, 1, 6, 0, 4]
BEGINNINGS = 3 * 4
"""Samples that are read to be compared."""


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
    ShardedStream.num_read = 0
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
    assert ShardedStream.num_read == 16 + BEGINNINGS
    assert "5 shards are counted, by reading all of them" in caplog.text
    caplog.clear()
    StreamShards(numbered(LENGTHS), found.lengths)
    assert not caplog.text
    assert ShardedStream.num_read == 16 + 2 * BEGINNINGS


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


def train(workers, batch, shares):
    """What workers read in an epoch whose shares change in its middle, all together."""
    order = list(workers[0].sampler(batch, shuffle=False))
    found = []
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        sizes = division.divide(len(part), shares[2 * start // len(order)])
        for rank, worker in enumerate(workers):
            found += worker.__getitems__(
                [part[i] for i in division.slice_of(range(len(part)), sizes, rank)]
            )
    return found


def test_workers_read_their_shards_and_little_else():
    """With shares of 1, 2 and 5 of 8: together no more than all; of a stream three times."""
    lengths = [40] * 8
    workers = [StreamShards(numbered(lengths), lengths) for _ in range(3)]
    ShardedStream.num_read = 0
    assert sorted(train(workers, 16, [[2, 4, 10]] * 2)) == list(range(320))
    assert ShardedStream.num_read == 320


def failing(error, times=10**6, at=9):
    """Of each shard its numbers, up to an error at one of them, so many times in all."""
    left = [times]

    def read(shard):
        for number in shard:
            if number == at and left[0]:
                left[0] -= 1
                raise error
            yield number

    return lambda: numbered(LENGTHS, read)


def drawn(worker_alone):
    """Another order on each worker; or also each time on a worker."""

    def make():
        seed = next(SEEDS)
        counting = itertools.count()

        def read(shard):
            step = 0 if worker_alone else next(counting)
            return iter(np.random.default_rng([seed, step]).permutation(shard))

        return numbered([30, 30], read)

    return make


def instead(read):
    """Numbers, read otherwise than they were counted."""
    return lambda: numbered(LENGTHS, read)


SEEDS = itertools.count()
OTHERS = "StreamShards(ShardedStream): shard 0 has other contents"
LOST = ConnectionError("lost at https://ann:secret@host/x?sig=secret")
TOLD = "shard 2: sample 3: reading has failed: lost at https://host/x"
STRANGE = {
    "as it should be": (instead(iter), LENGTHS, None),
    "counted": (instead(iter), None, None),
    "slow": (instead(lambda shard: (time.sleep(1e-4) or one for one in shard)), LENGTHS, None),
    "few shards": (lambda: numbered([1, 30]), [1, 30], None),
    "very unequal ones": (lambda: numbered([1, 90, 0, 2]), [1, 90, 0, 2], None),
    "a connection is lost once": (failing(LOST, 1), LENGTHS, None),
    "again and again": (failing(LOST), LENGTHS, TOLD),
    "again and again, as it is counted": (failing(LOST), None, "shard 2: reading has failed: lost"),
    "another error": (failing(ValueError("bad row")), LENGTHS, "bad row"),
    "it ends early": (instead(lambda shard: shard[:5]), LENGTHS, "shard 2: has no sample 5"),
    "it does not end": (instead(itertools.cycle), LENGTHS, "has more samples than the"),
    "another order each time": (drawn(worker_alone=False), [30, 30], "when it is read again"),
    "another order on each worker": (drawn(worker_alone=True), [30, 30], OTHERS),
}


@pytest.mark.parametrize(("make", "lengths", "words"), STRANGE.values(), ids=STRANGE.keys())
def test_of_a_strange_stream_each_sample_counts_once_or_it_is_refused(make, lengths, words):
    """In a line, before any sample is lost; three workers read it, whose shares change."""
    workers, sets = [], {}

    def epoch():
        for name in "abc":
            before = len(opened_files())
            workers.append(StreamShards(make(), lengths))
            sets[WorkerId(name, 0)] = opened_files()[before:]
        if told := differing(sets):
            raise UserError(*told.values())
        found = train(workers, 8, [[1, 3, 4], [5, 2, 1]])
        assert sorted(found) == list(range(len(workers[0])))

    if words is None:
        epoch()
        return
    with pytest.raises((UserError, UnreadableError, ValueError)) as caught:
        epoch()
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_is_compared_of_a_sample_is_the_same_on_every_machine():
    """Texts and whole numbers, wherever they are; not pixels, nor what is rounded."""
    one = {"text": "a", "ids": [1, np.int64(2)], "label": torch.tensor(3), "x": 0.1}
    one |= {"pixels": torch.zeros(2, dtype=torch.uint8), "more": torch.ones(2)}
    near = one | {"x": 0.2, "pixels": torch.ones(2, dtype=torch.uint8), "more": np.zeros(2)}
    assert beginning([one]) == beginning([near]) != ""
    for other in ({"text": "b"}, {"ids": [1, np.int64(3)]}, {"label": torch.tensor(4)}):
        assert beginning([one | other]) != beginning([one])
    assert beginning([{"x": 0.1}, np.zeros(2)]) == ""


def test_a_count_that_takes_long_is_told(monkeypatch, caplog):
    """A stream may have no end."""
    monkeypatch.setattr(stream_shards, "TELL_SECONDS", -1.0)
    StreamShards(numbered([2, 1]))
    assert "shard 0: 2 samples are counted so far: it must have an end" in caplog.text


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
        sets.append(opened_files()[-2])
    assert sets[0] == sets[1]
    found = differing({WorkerId(name, 0): [each] for name, each in zip("abc", sets, strict=True)})
    assert list(found) == [WorkerId("c", 0)]
    assert "shard 1 of 2" in found[WorkerId("c", 0)]


def of_datasets(**parts):
    """A stream with inner parts as those of `datasets`."""
    stream = numbered([2, 2])
    vars(stream).update(parts)
    return stream


def shuffling(seed):
    """A stage that draws, in a stage."""
    generator = np.random.default_rng(seed)
    return SimpleNamespace(ex_iterables=[SimpleNamespace(generator=generator)])


WITHOUT_SEED = "is shuffled or interleaved without a seed"
PARTS = {
    "nothing": ({"_distributed": None}, None),
    "shuffled with a seed": ({"_ex_iterable": shuffling(3)}, None),
    "shuffled without one": ({"_ex_iterable": shuffling(None)}, WITHOUT_SEED),
    "as before version 5": ({"_shuffling": SimpleNamespace(_original_seed=None)}, WITHOUT_SEED),
    "with a seed before that": ({"_shuffling": SimpleNamespace(_original_seed=0)}, None),
    "split by node": ({"_distributed": SimpleNamespace(rank=0)}, "leave it out"),
}


@pytest.mark.parametrize(("parts", "words"), PARTS.values(), ids=PARTS.keys())
def test_a_stream_that_is_another_one_on_each_worker_is_refused(parts, words):
    """Its shards would have other samples in each place."""
    with nullcontext() if words is None else pytest.raises(UserError, match=words) as caught:
        StreamShards(of_datasets(**parts), [2, 2])
    assert caught is None or "\n" not in str(caught.value)


def test_it_is_told_that_parts_of_a_stream_are_parts_of_its_shards(caplog):
    """As another script may take them for its first samples."""
    part = SimpleNamespace(ex_iterable=SimpleNamespace(split_when_sharding=True))
    StreamShards(of_datasets(_ex_iterable=part), [2, 2])
    assert "take(n) and skip(n) count in each shard its part of n" in caplog.text


SAMPLERS = {
    "its own": (lambda found: {"sampler": found.sampler(4)}, True),
    "none": (lambda _: {}, True),
    "torch's": (lambda _: {"shuffle": True}, False),
    "torch's, of a part": (
        lambda found: {"dataset": Subset(found, [0, 5]), "shuffle": True},
        False,
    ),
    "torch's, of several": (lambda found: {"dataset": found + found, "shuffle": True}, False),
    "a subset": (lambda _: {"sampler": SubsetRandomSampler([0, 5])}, False),
    "one of the script's": (lambda found: {"sampler": BlockShuffle(found, 2)}, False),
    "batches": (lambda found: {"batch_sampler": [[0], [1, 2]] * len(found)}, False),
}


@pytest.mark.parametrize(("given", "is_taken"), SAMPLERS.values(), ids=SAMPLERS.keys())
def test_a_sampler_that_would_read_shards_again_is_refused(given, is_taken):
    """By its name, with what to say."""
    found = StreamShards(numbered(LENGTHS), LENGTHS)
    options = {"dataset": found, "batch_size": 4} | given(found)
    if "batch_sampler" in options:
        del options["batch_size"]
    with nullcontext() if is_taken else pytest.raises(UserError, match=r"sampler=dataset\.sampler"):
        Sampling(DataLoader(**options))


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
