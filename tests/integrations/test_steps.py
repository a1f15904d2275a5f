"""What other packages' trainers ask of ours."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd.errors import UserError
from hetero_hvd.integrations import steps as steps_module
from hetero_hvd.integrations.steps import Steps, checked_state
from hetero_hvd.worker import evaluation
from hetero_hvd.worker.comm.horovod import Interrupted
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.micro_batch.split import LossParts

MODES = {
    "in one pass": {},
    "in micro-batches": {"micro_batch_size": 3},
    "in grains": {"reproducible": True, "grain": 4},
}


@pytest.mark.parametrize("weight", [None, 0.0], ids=["all count", "no loss counts"])
@pytest.mark.parametrize("options", MODES.values(), ids=MODES.keys())
def test_what_a_loss_function_counts_is_summed_over_the_step(options, weight):
    """Of each step anew, also of samples whose loss has no weight."""
    model = torch.nn.Linear(3, 1)
    data = TensorDataset(torch.randn(24, 3), torch.arange(24.0).unsqueeze(1))
    steps = Steps(
        model, torch.optim.SGD(model.parameters(), lr=0.0), DataLoader(data, 8), **options
    )

    def loss(x, y):
        mean = mse_loss(model(x), y)
        return LossParts(mean, float(len(x)) if weight is None else weight, float(y.sum()))

    found = []
    for _ in steps.epochs(1):
        for x, y in steps.batches():
            steps.step(loss, x, y)
            found.append(steps.last_counted)
    assert found == [sum(range(first, first + 8)) for first in (0, 8, 16)]


class Breaking:
    """Breaks the rendezvous of some gatherings, and notes how this worker goes on."""

    def __init__(self, steps, monkeypatch):
        self.breaks = self.recovered = 0
        self.others = None
        self._position = steps._state.position
        for module in (evaluation, steps_module):
            monkeypatch.setattr(module, "gather_bytes", self._gather)
        monkeypatch.setattr(steps._state, "recover", self._recover)

    def _gather(self, _collective, payload, _name):
        if self.breaks:
            self.breaks -= 1
            raise Interrupted("a worker is lost")
        return [payload, b"another"]

    def _recover(self, _cause, _reason):
        self.recovered += 1
        if self.others is not None:
            self._position.load_state_dict(self.others)


def small_steps(**more):
    """Two steps in each epoch."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, Steps(model, optimizer, DataLoader(TensorDataset(torch.randn(8, 3)), 4), **more)


@pytest.mark.parametrize("breaks", [0, 1, 3])
def test_what_breaks_at_the_end_of_an_epoch_is_gathered_again(monkeypatch, breaks):
    """Among those who remain, so that all have the same, however often it breaks."""
    model, steps = small_steps()
    breaking = Breaking(steps, monkeypatch)
    for epoch in steps.epochs(2):
        for (x,) in steps.batches():
            steps.step(lambda x: model(x).square().mean(), x)
        breaking.breaks = breaks
        for number in range(2):
            own = f"{epoch} {number}".encode()
            assert steps.gather(own, "test") == [own, b"another"]
    assert breaking.recovered == 2 * breaks
    assert steps._state.position.gathered == []


@pytest.mark.parametrize("others", ["who had it", "of a loop with an evaluation before it"])
def test_who_did_not_get_all_of_it_has_it_from_the_others(monkeypatch, others):
    """They were through with it when the rendezvous broke, and do not come a second time."""
    model, steps = small_steps()
    breaking = Breaking(steps, monkeypatch)
    has_evaluated = others != "who had it"
    for _ in steps.epochs(1):
        for (x,) in steps.batches():
            steps.step(lambda x: model(x).square().mean(), x)
        position = steps._state.position
        if has_evaluated:
            position.evaluations.append({"loss": 1.0})
            steps._evaluations._look_where()
            steps._evaluations.num_done = 1
        theirs = position.state_dict()
        theirs["evaluations"] = [*theirs["evaluations"], {evaluation.GATHERED: 0.0}]
        breaking.others = theirs | {"gathered": [[b"lost", b"one", b"another"]]}
        breaking.breaks = 1
        assert steps.gather(b"one", "test") == [b"lost", b"one", b"another"]
        assert steps.gather(b"two", "test") == [b"two", b"another"]
    assert breaking.recovered == 1


def test_after_the_training_a_worker_says_that_it_goes_on_alone(monkeypatch, caplog):
    """Nobody can be let in any more.

    In a step's application it is told again: tests/worker/recovery/test_step_application.py.
    """
    model, steps = small_steps()
    breaking = Breaking(steps, monkeypatch)
    for _ in steps.epochs(1):
        for (x,) in steps.batches():
            steps.step(lambda x: model(x).square().mean(), x)
    breaking.breaks = 1
    assert steps.gather(b"own", "test") == [b"own"]
    assert not breaking.recovered
    assert "test: this worker goes on with its own alone: a worker is lost" in caplog.text


def test_a_position_without_anything_gathered_is_as_before():
    """And who takes it over has nothing of his own left."""
    state = Position(loss=1.0).state_dict()  # of another NaN nothing is equal
    assert "gathered" not in state
    taken = Position(gathered=[[b"mine"]])
    taken.load_state_dict(state)
    assert taken == Position(loss=1.0)


def adam(parameters, **options):
    """With a state, after one step."""
    parameters = list(parameters)
    for each in parameters:
        each.grad = torch.ones_like(each)
    made = torch.optim.AdamW(parameters, **options)
    made.step()
    return made


SGD = torch.optim.SGD
STATES = {
    "the same": (adam, adam, ""),
    "other kernels": (lambda p: adam(p, fused=True), lambda p: adam(p, foreach=True), ""),
    "SGD's for AdamW": (SGD, adam, "lacks betas, eps"),
    "AdamW's for SGD": (adam, SGD, "lacks dampening, momentum"),
    "fewer groups": (
        adam,
        lambda p: SGD([{"params": [each]} for each in p]),
        "different number of parameter groups",
    ),
    "fewer parameters": (lambda p: adam(list(p)[:1]), adam, "doesn't match the size"),
}


@pytest.mark.parametrize("case", STATES)
def test_the_state_of_another_optimizer_is_refused(case):
    """In one line when it is read, where torch would fail in the first step, or say no place."""
    written, own, why = STATES[case]
    state = written(torch.nn.Linear(3, 1).parameters()).state_dict()
    optimizer = own(torch.nn.Linear(3, 1).parameters())
    if not why:
        with checked_state(optimizer, "there"):
            optimizer.load_state_dict(state)
        optimizer.step()
        found = {name: optimizer.param_groups[0][name] for name in ("fused", "foreach")}
        assert found == {name: optimizer.defaults[name] for name in found}
        return
    with pytest.raises(UserError, match=f"^there: not the state of this .*{why}"):  # noqa: SIM117
        with checked_state(optimizer, "there"):
            optimizer.load_state_dict(state)
