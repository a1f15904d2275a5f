"""Replicas that differ: who is right is told, or nobody goes on; and it is said what differs."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from msgspec.structs import replace
from rendezvous import Hub, run_together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.errors import InvariantError, JobError, UserError
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.recovery import membership
from hetero_hvd.worker.recovery.comparison import Described, ReplicaComparison
from hetero_hvd.worker.recovery.replica import Replica

EPOCHS, STEPS, BATCH = 2, 6, 4
X = torch.linspace(-1, 1, STEPS * BATCH)[:, None].expand(-1, 3)


class Ema:
    """A copy of the model that a script keeps, in training mode by mistake or not."""

    def __init__(self):
        self.copy = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))

    def state_dict(self):
        """Of the copy."""
        return self.copy.state_dict()

    def load_state_dict(self, state):
        """Into the copy."""
        self.copy.load_state_dict(state)


def script(*, spoil=lambda _rank, _step, _model, _ema: None, arithmetics="xxxx", **options):
    """A worker's script, which calls `spoil` after each step; gives the parameters at its end."""

    def train(context):
        torch.manual_seed(0)
        model, ema = nn.Linear(3, 1), Ema()
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
        for parameter in ema.copy.parameters():
            nn.init.ones_(parameter)
        loader = DataLoader(TensorDataset(X), BATCH)
        trainer = Trainer(model, optimizer, loader, extra_state={"ema": ema}, **options)
        trainer._state._context = context
        arithmetic = arithmetics[context.settings.worker.slot]
        trainer._state.work = replace(trainer._state.work, arithmetic=arithmetic)
        for _ in trainer.epochs(EPOCHS):
            for (mine,) in trainer.batches():
                trainer.step(lambda x: model(x).square().mean(), mine)
                spoil(context.settings.worker.slot, trainer.applied_steps, model, ema)
        return nn.utils.parameters_to_vector(model.parameters()).tolist()

    return train


def corrupted(*ranks, step=3):
    """One bias of these workers changes by itself after a step, once."""
    due = set(ranks)

    def spoil(rank, now, model, _ema):
        if rank in due and now == step:
            due.remove(rank)
            with torch.no_grad():
                model.bias += 1000 + rank

    return spoil


def rounded(*ranks, by=1e-6):
    """These workers' processors round each update in another way than the others'."""

    def spoil(rank, _step, model, ema):
        if rank in ranks:
            with torch.no_grad():
                model.weight *= 1 + by
                ema.copy[0].weight *= 1 + by

    return spoil


@pytest.fixture
def undisturbed():
    """What comes out without any fault."""
    return run_together(Hub(1), script())[0]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Each worker's checkpoint after every step, in a folder of its own choosing."""
    settings = {"folder": str(tmp_path), "run": "one", "every_seconds": 1e-9, "keep": 100}
    monkeypatch.setenv("HETERO_HVD_LAUNCH", json.dumps({"checkpoints": settings}))
    return tmp_path


def broken(size, step):
    """The rendezvous breaks at a step, which nobody applies."""
    return Hub(size, [(rank, "totals.0", step, "before") for rank in range(size)])


@pytest.mark.parametrize("guilty", [0, 1, 2, 3])
def test_a_rendezvous_keeps_what_most_hold(caplog, undisturbed, guilty):
    """Whoever holds other bits gets those of the majority, rank 0 too, and is named."""
    hub = broken(4, 4)
    results = run_together(hub, script(spoil=corrupted(guilty)))
    assert hub.fired
    # The step that broke was computed with other bits, and was taken again.
    assert results == [pytest.approx(undisturbed, abs=1e-5)] * 4
    words = f"after step 3 the replica of node:{guilty} differs in model.bias: replaced"
    assert [r.message for r in caplog.records if words in r.message] == [
        f"{words}, as most hold another one"
    ]


def test_of_two_the_one_that_has_not_changed_since_the_last_check_is_right(
    caplog, monkeypatch, undisturbed
):
    """All were compared after step 3; then rank 0 changed, and the next step broke."""
    monkeypatch.setenv("HETERO_HVD_CHECK_STEPS", "3")
    hub = broken(2, 4)
    results = run_together(hub, script(spoil=corrupted(0)))
    assert hub.fired
    assert results == [pytest.approx(undisturbed, abs=1e-5)] * 2
    assert "the replica of node:0 differs in model.bias: replaced, as another one is" in caplog.text


def test_of_two_that_both_moved_on_neither_is_believed(caplog, kept):
    """They go back to the newest checkpoint that there is, and it is said."""
    hub = broken(2, 5)
    results = run_together(hub, script(spoil=corrupted(1)))
    assert hub.fired
    assert results[0] == results[1]
    assert "all go back to the newest checkpoint" in caplog.text
    assert "after step 4 the replicas of node:0, node:1 differ in model.bias: all" in caplog.text
    assert list(kept.glob("step-*"))


def test_who_goes_back_in_an_evaluation_trains_the_epoch_to_its_end(monkeypatch, tmp_path):
    """Its steps since the checkpoint are before all again: none of them is left out."""
    settings = {"folder": str(tmp_path), "run": "one", "every_seconds": 0}
    monkeypatch.setenv("HETERO_HVD_LAUNCH", json.dumps({"checkpoints": settings}))
    due = {1}

    def train(context):
        model = nn.Linear(3, 1)
        nn.init.ones_(model.weight), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(X), BATCH)
        trainer = Trainer(model, optimizer, loader)
        trainer._state._context = context
        epochs = []
        for epoch in trainer.epochs(EPOCHS):
            epochs.append(epoch)
            for (mine,) in trainer.batches():
                trainer.step(lambda x: model(x).square().mean(), mine)
                if trainer.applied_steps == 3:
                    trainer._state._kept.keep()
            if context.settings.worker.slot in due:
                due.clear()
                with torch.no_grad():
                    model.bias += 1000
            trainer.evaluate(lambda x: {"output": model(x).mean()}, loader)
        return trainer.applied_steps, epochs, model.bias.item()

    found = run_together(Hub(2, [(rank, "metrics", 1, "before") for rank in range(2)]), train)
    assert not due
    undisturbed = run_together(Hub(1), train)[0]
    assert [steps for steps, _, _ in found] == [EPOCHS * STEPS] * 2
    assert [epochs for _, epochs, _ in found] == [[0, 0, 1]] * 2
    assert [bias for *_, bias in found] == [pytest.approx(undisturbed[2], abs=1e-5)] * 2


def test_without_a_checkpoint_the_job_ends():
    """Half the cluster may be right: nobody goes on with a guess."""
    hub = broken(2, 5)
    words = (
        r"after step 4 the replicas of node:0, node:1 differ in model\.bias, no state is held by"
    )
    with pytest.raises(JobError, match=words):
        run_together(hub, script(spoil=corrupted(1)))
    assert hub.fired


def failing(_rank, step, _model, _ema):
    """A mistake of the script, while all replicas are equal."""
    if step == 4:
        raise ZeroDivisionError


def nothing(_rank, _step, _model, _ema):
    """Leave all as it is."""


ENDS = {
    "a mistake of the script": (lambda: Hub(2), failing, ZeroDivisionError, [4]),
    "at a check": (lambda: Hub(2), corrupted(1), JobError, []),
    "after a fault": (lambda: broken(2, 4), corrupted(1), JobError, []),
    "after a copy": (lambda: Hub(2, [(1, "totals.0", 3, "before")]), nothing, InvariantError, []),
}
"""Where the workers meet, what goes wrong there, how it ends, and the steps of its checkpoints."""


@pytest.mark.parametrize("end", ENDS)
def test_what_nobody_trusts_is_not_kept(kept, monkeypatch, end):
    """When a loop is left its state becomes the newest checkpoint, unless it may be corrupted."""
    hub, spoil, error, steps = ENDS[end]
    monkeypatch.setenv("HETERO_HVD_CHECK_STEPS", "4")
    settings = {"folder": str(kept), "run": "one", "every_seconds": 1e9, "keep": 100}
    monkeypatch.setenv("HETERO_HVD_LAUNCH", json.dumps({"checkpoints": settings}))
    if end == "after a copy":  # which arrives damaged
        monkeypatch.setattr(membership, "copy_state", lambda *_, **_options: None)
    with pytest.raises(error):
        run_together(hub(), script(spoil=spoil))
    for writer in threading.enumerate():
        if writer.name == "checkpoint":
            writer.join()
    assert [path.name for path in kept.glob("step-*")] == [f"step-{n:012d}-one" for n in steps]


def forgotten(rank, _step, _model, ema):
    """An average in training mode sees each worker's own part of the batch."""
    ema.copy.train()(X[rank : rank + 4])


@pytest.mark.parametrize(("epochs", "when"), [(EPOCHS, "at step 7"), (1, "after 6 steps")])
def test_what_differs_is_named_early(monkeypatch, epochs, when):
    """The entry and the workers, right after the first epoch and at the end at the latest."""
    monkeypatch.setitem(globals(), "EPOCHS", epochs)
    with pytest.raises(UserError) as caught:
        run_together(Hub(2), script(spoil=forgotten))
    assert str(caught.value) == (
        f"{when} the replicas of node:0, node:1 differ in extra_state['ema']: 1.running_mean, and "
        "no state is held by most: a script must change them on all workers alike; no checkpoints "
        "are written"
    )


def test_at_the_end_it_is_said_what_was_saved(monkeypatch, kept):
    """The training was long: what rank 0 holds is not thrown away."""
    monkeypatch.setitem(globals(), "EPOCHS", 1)
    with pytest.raises(UserError, match=r"the newest checkpoint is of step 6: .*step-0+6-one"):
        run_together(Hub(2), script(spoil=forgotten))
    assert len(list(kept.glob("step-*06-one/state.pt"))) == 1


def test_the_last_step_heals_too(caplog, undisturbed):
    """A replica that changed at the very end does not cost the training."""
    last = corrupted(1, step=EPOCHS * STEPS)
    results = run_together(Hub(3), script(spoil=last))
    assert [results[0], results[2]] == [pytest.approx(undisturbed, abs=1e-5)] * 2
    assert "after 12 steps the replica of node:1 differs in model.bias: healed" in caplog.text


@pytest.mark.parametrize("arithmetics", ["gc", "cg", "gcc", "ggc", "gccc", "gghc"])
@pytest.mark.parametrize("faults", [(), (4,), (4, 5)])
def test_unlike_processors_may_round_differently(
    caplog, monkeypatch, undisturbed, arithmetics, faults
):
    """Nobody is wrong: at each comparison all get one state, whoever is lost between."""
    monkeypatch.setenv("HETERO_HVD_CHECK_STEPS", "5")
    size = len(arithmetics)
    times = {step: 1 + sum(other <= step for other in faults[:n]) for n, step in enumerate(faults)}
    due = [(rank, "totals.0", step, "before") for rank in range(size) for step in times]
    hub = Hub(size, due)
    other = [rank for rank in range(size) if arithmetics[rank] == "g"]
    results = run_together(hub, script(spoil=rounded(*other), arithmetics=arithmetics))
    assert len(hub.fired) == len(due)
    assert results == [pytest.approx(undisturbed, abs=1e-4)] * size
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("arithmetics", "guilty", "by"),
    [("gc", 0, 0.1), ("gg", 0, 1e-6)],
)
def test_what_is_no_rounding_of_another_processor_is_an_error(arithmetics, guilty, by):
    """A difference is too large for it, or it is one between processors that round alike."""
    spoil = rounded(guilty, by=by)
    with pytest.raises(JobError, match=r"replicas? of .* differs? in"):
        run_together(Hub(len(arithmetics)), script(spoil=spoil, arithmetics=arithmetics))


def described(name, arithmetic, values):
    """A replica of one tensor, or of something else."""

    class Part:
        def state_dict(self):
            return {"weight": values}

        load_state_dict = None

    replica = Replica({"model": Part()})
    digest, entries, sketches = replica.checksum(), replica.entries(), replica.sketches()
    return Described(WorkerId(name, 0), arithmetic, digest, entries, sketches)


W = torch.linspace(0.5, 2, 1000)
VALUES = {
    "float32": (W, W * (1 + 1e-5), W * 1.01),
    "float64": (W.double(), W.double() * (1 + 1e-12), W.double() * (1 + 1e-5)),
    "bfloat16": (W.bfloat16(), (W * 1.02).bfloat16(), W.bfloat16() * 2),
    "float16": (W.half(), (W * 1.002).half(), W.half() * 1.5),
    "one of many": (W, torch.where(W > 1.999, W * 1.0002, W), torch.where(W > 1.9, 0.0, W)),
    "signs": (W, W * (1 + 1e-6), -W),
    "zeros": (W * 0.0, W * -0.0, W),
    "a number": (0.25, 0.25 * (1 + 1e-6), 0.26),
}
"""What most hold, what differs from it by rounding, and what differs by more."""


@pytest.mark.parametrize("values", VALUES)
def test_rounding_is_told_from_other_differences(values):
    """By the format's digits, whoever is in the majority."""
    first, near, far = VALUES[values]
    for members, right, wrong in (
        ([("g", first), ("c", near)], 0, []),
        ([("g", first), ("c", near), ("c", near)], 1, []),
        ([("g", first), ("g", first), ("c", far)], 0, [2]),
        ([("g", first), ("c", far), ("c", far)], 1, [0]),
        ([("g", first), ("g", first), ("h", near), ("c", far)], 0, [3]),
        ([("g", first), ("c", far)], None, None),
        ([("g", first), ("g", far), ("c", near)], None, None),
    ):
        all_of_them = [described(f"n{n}", *member) for n, member in enumerate(members)]
        comparison = ReplicaComparison(all_of_them)
        if right is None:
            assert comparison.right is None
            continue
        assert comparison.right == all_of_them[right].digest
        found = comparison.wrong(comparison.right)
        assert [int(member.worker.node[1:]) for member in found] == wrong


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.arange(4), torch.arange(4) + 1),
        (torch.tensor([True]), torch.tensor([False])),
        (3, 4),
        ("a", "b"),
        (W, W[:-1]),
        (W, W.double()),
        (W, None),
        (W, W * torch.nan),
        (torch.zeros(0), torch.ones(1)),
        ([W, W], [W]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_does_not_round(one, other):
    """Counts, flags, words, shapes and what is no number at all are the same or wrong."""
    pair = [described("n0", "g", one), described("n1", "c", other)]
    assert ReplicaComparison(pair).right is None


DIFFERENT = {
    "dataset length": lambda rank: {"dataset": TensorDataset(X[: 20 + rank])},
    "global batch size": lambda rank: {"batch_size": 4 + rank},
    "shuffle": lambda rank: {"shuffle": bool(rank)},
    "drop_last": lambda rank: {"drop_last": bool(rank)},
    "seed": lambda rank: {"seed": rank},
    "staleness bound": lambda rank: {"staleness_bound": rank},
    "parts of the state": lambda rank: {"extra_state": {"ema": Ema()} if rank else {}},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_scripts_that_differ_are_refused_by_name(name):
    """What decides who computes what must be the same on all workers, or nobody trains."""

    def train(context):
        model = nn.Linear(3, 1)
        own = DIFFERENT[name](context.settings.worker.slot)
        given = {"dataset": TensorDataset(X), "batch_size": 4}
        of_loader = ("dataset", "batch_size", "shuffle", "drop_last")
        loader = DataLoader(**given | {key: own.pop(key) for key in of_loader if key in own})
        trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, **own)
        trainer._state._context = context
        next(trainer.epochs(1))

    with pytest.raises(JobError, match=f"scripts differ: {name}: node:0: .*, node:1: "):
        run_together(Hub(2), train)
