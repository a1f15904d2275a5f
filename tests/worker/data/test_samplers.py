"""Every sampler gives the same samples on any number of workers, in every mode, resumed or not."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from rendezvous import Hub
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from turns import run_in_turns

from hetero_hvd import Trainer
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.worker.data.share_loader import contiguous_batches

SIZE, BATCH, EPOCHS, STOP = 20, 8, 2, 1
"""Samples, samples in a step, epochs, and the step after which a run stops to be resumed."""

DATA = [float(number) for number in range(SIZE)]
WEIGHTS = [number % 5 for number in range(SIZE)]

pytestmark = pytest.mark.usefixtures("_torch_is_put_back")


class Halves(Sampler):
    """A script's own: a random half of the samples, from torch's global generator."""

    def __len__(self):
        return SIZE // 2

    def __iter__(self):
        return iter(torch.randperm(SIZE)[: len(self)])


class Curriculum(Sampler):
    """A script's own: more of the samples that come later, the later the epoch."""

    epoch = 0

    def __len__(self):
        return SIZE

    def set_epoch(self, epoch):
        """As of `DistributedSampler`."""
        self.epoch = epoch

    def __iter__(self):
        return iter([min(SIZE - 1, index + 3 * self.epoch) for index in range(SIZE)])


class ByLength(Sampler):
    """Batches of samples of similar length, of several sizes, in random order."""

    batches = ([0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11, 12, 13, 14, 15], [16, 17, 18, 19])

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter([self.batches[number] for number in torch.randperm(len(self))])


class Growing(ByLength):
    """Its batches are larger in later epochs."""

    epoch = 0

    def set_epoch(self, epoch):
        """As above."""
        self.epoch = epoch

    def __iter__(self):
        return iter([batch * (1 + self.epoch) for batch in self.batches])


def sampled(sampler):
    """A loader with a sampler."""
    return DataLoader(DATA, BATCH, sampler=sampler)


def batched(sampler):
    """A loader with a batch sampler."""
    return DataLoader(DATA, batch_sampler=sampler)


LOADERS = {
    "shuffled": lambda: DataLoader(DATA, BATCH, shuffle=True),
    "weighted": lambda: sampled(WeightedRandomSampler(WEIGHTS, 24)),
    "weights that overflow": lambda: sampled(WeightedRandomSampler([1e308] * SIZE, 24)),
    "weights with gradients": lambda: sampled(
        WeightedRandomSampler(torch.ones(SIZE, requires_grad=True), 24)
    ),
    "weighted, each once": lambda: sampled(WeightedRandomSampler(WEIGHTS, 13, replacement=False)),
    "with replacement": lambda: sampled(RandomSampler(DATA, replacement=True)),
    "more than there are": lambda: sampled(RandomSampler(DATA, num_samples=30)),
    "fewer than there are": lambda: sampled(RandomSampler(DATA, num_samples=11)),
    "subset": lambda: sampled(SubsetRandomSampler(range(3, 17))),
    "own, random": lambda: sampled(Halves()),
    "own, by epoch": lambda: sampled(Curriculum()),
    "list": lambda: sampled([3, 1, 4, 1, 5, 9, 2, 6, 5]),
    "torch's batches": lambda: batched(
        BatchSampler(WeightedRandomSampler(WEIGHTS, 20), BATCH, drop_last=True)
    ),
    "batches by length": lambda: batched(ByLength()),
    "batches that grow": lambda: batched(Growing()),
}
MODES = {
    "synchronous": {},
    "reproducible": {"reproducible": True, "grain": 2},
    "wait_free": {"wait_free": True, "micro_batch_size": 2},
}
UNFIT = {("wait_free", "batches by length"), ("wait_free", "batches that grow")} | {
    ("reproducible", "batches that grow")
}
"""Refused: see `REFUSED` below."""


def run(loader, folder, *, workers=1, resume="", stop_at=None, **options):
    """Train; gives epoch and step to the samples of that step in their order, and fingerprints.

    Args:
        loader: Makes the loader of a worker.
        folder: For checkpoints.
        workers: Threads.
        resume: Folder to go on from.
        stop_at: Keep the state after this step, and end; None: run to the end.
        options: Of the trainer.
    """
    settings = {"folder": str(folder), "run": folder.name, "every_seconds": 0.0}
    settings |= {"resume": str(resume)} if resume else {}
    taken = defaultdict(dict)
    number = itertools.count()

    def train(context):
        model = nn.Linear(1, 1)
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        trainer = Trainer(model, optimizer, loader(), **options)
        trainer._state._context = context
        for epoch in trainer.epochs(EPOCHS):
            for x in trainer.batches():
                part = trainer._last
                place = part.first_sample, context.settings.worker.slot, next(number)
                taken[epoch, part.step_in_epoch][place] = x.tolist()
                trainer.step(lambda x: model(x.float()[:, None]).square().mean(), x)
                if trainer.applied_steps == stop_at:
                    trainer._state._kept.keep()
                    return ""
        return trainer.fingerprint()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETERO_HVD_LAUNCH", json.dumps({"checkpoints": settings}))
        prints = run_in_turns(Hub(workers), train)
    samples = {
        step: [x for _, part in sorted(parts.items()) for x in part]
        for step, parts in sorted(taken.items())
    }
    return samples, set(prints)


def in_epochs(samples):
    """What each epoch used, in no order."""
    found = defaultdict(Counter)
    for (epoch, _), used in samples.items():
        found[epoch].update(used)
    return dict(found)


FIT = [(mode, name) for mode in MODES for name in LOADERS if (mode, name) not in UNFIT]


@pytest.mark.parametrize(("mode", "name"), FIT)
def test_the_same_samples_on_any_workers_and_after_a_resume(tmp_path, mode, name):
    """Each step's on 1, 2 and 3 workers, and when two stop in mid-epoch and three or one go on.

    Rounds of the wait-free mode take what they get done: there it is each epoch's that are equal.
    """
    look = in_epochs if mode == "wait_free" else dict
    loader, options = LOADERS[name], MODES[mode]
    alone, prints = run(loader, tmp_path / "alone", **options)
    assert len({epoch for epoch, _ in alone}) == EPOCHS
    for workers in (2, 3):
        found, others = run(loader, tmp_path / f"{workers}", workers=workers, **options)
        assert look(found) == look(alone)
        prints |= others
    begun, _ = run(loader, tmp_path / "begun", workers=2, stop_at=STOP, **options)
    rest, others = run(loader, tmp_path / "rest", workers=3, resume=tmp_path / "begun", **options)
    assert rest
    if mode == "wait_free":
        both = [in_epochs(begun).get(0, Counter()), in_epochs(rest).get(0, Counter())]
        assert both[1] <= in_epochs(alone)[0]
        assert in_epochs(rest)[1] == in_epochs(alone)[1]
    else:
        assert begun | rest == alone
    if mode == "reproducible":
        assert len(prints | others) == 1
    assert (in_order(alone, 0) == in_order(alone, 1)) == (name == "list")


def in_order(samples, epoch):
    """The samples of an epoch, in order."""
    return [x for (where, _), used in samples.items() if where == epoch for x in used]


def test_they_are_what_the_sampler_is_for(tmp_path):
    """Each gives as many samples as it should, and those that it should."""
    found = {}
    for name, loader in LOADERS.items():
        samples, _ = run(loader, tmp_path / name)
        found[name] = in_order(samples, 0), [len(used) for (e, _), used in samples.items() if not e]
    assert sorted(found["shuffled"][0]) == DATA
    assert found["weighted"][1] == [8, 8, 8]
    assert not {x for x in found["weighted"][0] if x % 5 == 0}
    assert len(set(found["weighted, each once"][0])) == 13
    assert len(set(found["with replacement"][0])) < SIZE == len(found["with replacement"][0])
    assert set(Counter(found["more than there are"][0]).values()) == {1, 2}
    assert len(set(found["fewer than there are"][0])) == 11
    assert sorted(found["subset"][0]) == DATA[3:17]
    assert len(set(found["own, random"][0])) == SIZE // 2
    assert found["own, by epoch"][0] == DATA
    assert found["list"][0] == [3, 1, 4, 1, 5, 9, 2, 6, 5]
    assert found["torch's batches"][1] == [8, 8]
    assert sorted(found["batches by length"][1]) == [3, 4, 5, 8]
    assert found["batches that grow"][1] == [8, 3, 5, 4]


class OwnGenerator(Halves):
    """Draws from a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self):
        return iter(torch.randperm(SIZE, generator=self.generator)[: len(self)])


class Counting(Halves):
    """Remembers how often it was asked."""

    calls = 0

    def __iter__(self):
        self.calls += 1
        return iter([self.calls % SIZE] * len(self))


class Endless(Halves):
    """Never ends, whatever its length says."""

    def __iter__(self):
        while True:
            yield 0


class Short(Halves):
    """Gives fewer than it says."""

    def __iter__(self):
        return iter([1, 2, 3])


class NoLength(Sampler):
    """Its end is not known."""

    def __iter__(self):
        return iter(range(SIZE))


def batches_of(*found):
    """A batch sampler that gives these."""
    return batched(list(found))


REFUSED = {
    "distributed": (
        lambda: sampled(DistributedSampler(DATA, num_replicas=2, rank=0)),
        "DistributedSampler gives each process samples of its own: leave it out and say shuffle=",
    ),
    "no length": (lambda: sampled(NoLength()), "sampler NoLength has no len()"),
    "no length, batches": (lambda: batched(NoLength()), "sampler NoLength has no len()"),
    "endless": (lambda: sampled(Endless()), "Endless gives more in epoch 0, where its len() is 10"),
    "too few": (lambda: sampled(Short()), "Short gives 3 in epoch 0, where its len() is 10"),
    "own generator": (lambda: sampled(OwnGenerator()), "no generator of its own"),
    "state": (lambda: sampled(Counting()), "gives another order when it is asked again"),
    "none": (lambda: sampled(SubsetRandomSampler([])), "sampler gives no samples"),
    "keys": (lambda: sampled(["a", "b"]), "sampler list must give indices of samples"),
    "too large": (lambda: sampled([2**70]), "sampler list must give indices of samples"),
    "keys of a subset": (
        lambda: sampled(SubsetRandomSampler(["a", "b"])),
        "sampler SubsetRandomSampler must give indices of samples",
    ),
    "a mask of a subset": (
        lambda: sampled(SubsetRandomSampler(np.array([True, False]))),
        "sampler SubsetRandomSampler must give indices of samples",
    ),
    "no lists": (lambda: batches_of(1, 2), "sampler list must give lists of indices"),
    "empty batch": (lambda: batches_of([1], []), "gives an empty batch in epoch 0"),
    "all weights 0": (
        lambda: sampled(WeightedRandomSampler([0.0] * SIZE, 4)),
        "weights must be finite and >= 0, and one of them > 0",
    ),
    "NaN": (lambda: sampled(WeightedRandomSampler([1.0, float("nan")], 4)), "must be finite"),
    "too few weights": (
        lambda: sampled(WeightedRandomSampler([1.0, 1.0, 0.0], 3, replacement=False)),
        "3 samples without replacement of 2 with a weight > 0",
    ),
    "weights too small beside another": (
        lambda: sampled(WeightedRandomSampler([1e300, 1e-300], 2, replacement=False)),
        "2 samples without replacement of 1 with a weight > 0",
    ),
}


@pytest.mark.parametrize(("loader", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_divided_is_refused(tmp_path, loader, words):
    """In one line, before anything is trained."""
    with pytest.raises(UserError) as caught:
        run(loader, tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


IN_A_MODE = {
    ("wait_free", "batches by length"): "the batches of a batch_sampler would be cut into chunks",
    ("wait_free", "batches that grow"): "the batches of a batch_sampler would be cut into chunks",
    ("reproducible", "batches that grow"): "epoch 1 has 16 samples: must be at most 8",
}


@pytest.mark.parametrize(("case", "words"), IN_A_MODE.items(), ids=map(str, IN_A_MODE))
def test_what_a_mode_cannot_is_refused(tmp_path, case, words):
    """By name, and with what to do."""
    assert case in UNFIT
    with pytest.raises(UserError, match=words):
        run(LOADERS[case[1]], tmp_path, **MODES[case[0]])


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("mode", ["synchronous", "reproducible"])
def test_workers_whose_samplers_differ_end_before_the_step_is_applied(tmp_path, mode, epoch):
    """As one's depends on what only it has: at the start, or in a later epoch."""
    made = []

    class Rank(Curriculum):
        def __init__(self):
            made.append(self)
            self.number = len(made)

        def __iter__(self):
            found = list(super().__iter__())
            return iter(found[:: -1 if self.number == 2 and self.epoch >= 2 * epoch else 1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "EPOCHS", 3)
        with pytest.raises(JobError) as caught:
            run(lambda: sampled(Rank()), tmp_path, workers=2, **MODES[mode])
    known = "scripts differ: sampler: " if epoch == 0 else "step 0 of epoch 2: the sampler of "
    assert known in str(caught.value)


def test_a_resume_in_mid_epoch_with_other_weights_is_refused(tmp_path):
    """Which samples are left could not be told; from the end of an epoch on they may change."""
    weighted = LOADERS["weighted"]
    run(weighted, tmp_path / "begun", stop_at=STOP)

    def other():
        return sampled(WeightedRandomSampler(WEIGHTS[::-1], 24))

    with pytest.raises(UserError, match="sampler was the DataLoader's sampler WeightedRandom"):
        run(other, tmp_path / "other", resume=tmp_path / "begun")
    with pytest.raises(UserError, match="and is none"):
        run(LOADERS["shuffled"], tmp_path / "none", resume=tmp_path / "begun")


def test_batches_of_a_batch_sampler_accumulate(tmp_path):
    """A step takes so many of its batches, whole ones."""
    found, _ = run(LOADERS["batches by length"], tmp_path, workers=2, accumulation_steps=3)
    batches = list(ByLength.batches)
    for used in found.values():
        left = used
        while left:
            first = next(batch for batch in batches if left[: len(batch)] == batch)
            left = left[len(first) :]
    assert [len(used) > 8 for used in found.values()] == [True, False] * EPOCHS


EVALUATED = {
    "subset": (lambda: sampled(SubsetRandomSampler(range(3, 17))), DATA[3:17]),
    "list": (lambda: sampled([3, 1, 4, 1]), [3, 1, 4, 1]),
    "batches": (lambda: batched(ByLength()), DATA),
    "torch's batches": (lambda: batched(BatchSampler(range(SIZE), BATCH, drop_last=False)), DATA),
}


@pytest.mark.parametrize("loader", [sampled(SubsetRandomSampler([])), batched([])])
def test_an_evaluation_of_nothing_is_refused(loader):
    """With the sampler that gives it."""
    with pytest.raises(UserError, match="the sampler of the loader to evaluate gives no samples"):
        next(contiguous_batches(loader, [1, 1], 0))


@pytest.mark.parametrize("mode", ["synchronous", "reproducible"])
@pytest.mark.parametrize(("loader", "expected"), EVALUATED.values(), ids=EVALUATED.keys())
def test_an_evaluation_uses_what_the_sampler_gives(loader, expected, mode):
    """Each of its samples once, on any number of workers, to the same result."""
    seen = []

    def evaluate(context):
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        trainer = Trainer(model, optimizer, DataLoader(DATA, BATCH), **MODES[mode])
        trainer._state._context = context
        for _ in trainer.epochs(1):
            found = trainer.evaluate(lambda x: {"mean": x.float().mean()}, loader())
            seen.append(found["mean"])
            break

    for workers in (1, 3):
        run_in_turns(Hub(workers), evaluate)
    assert seen == pytest.approx([sum(expected) / len(expected)] * 4, rel=1e-6)
