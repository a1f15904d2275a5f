"""What a script logs: which values and names, how they are rolled up, and that no step waits."""

from __future__ import annotations

import math
from decimal import Decimal
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from fake_accelerator import DeviceTensor, FakeTorch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer, UserError
from hetero_hvd.messages import Logged
from hetero_hvd.worker import accelerator, logged_values
from hetero_hvd.worker.data.share_loader import Slice
from hetero_hvd.worker.logged_values import MAX_NAMES, ValueLog
from hetero_hvd.worker.session.worker_context import WorkerContext

DATA = TensorDataset(torch.randn(12, 3), torch.randn(12, 1))


class Leader:
    """Where training stands, as a `ValueLog` asks; what is told is kept."""

    def __init__(self):
        self.told = []
        self.is_leader = True
        self.position = SimpleNamespace(
            applied_steps=0, epoch=0, step_in_epoch=0, skipped_samples=0, loss=0.5
        )
        self.context = SimpleNamespace(tell=self.told.append)
        self.seconds = 0.0

    def steps_per_epoch(self, _skipped=0):
        """Of the loader."""
        return 100

    def step(self, log, seconds=0.068):
        """One more is applied."""
        self.position.applied_steps += 1
        self.seconds += seconds
        log.step_applied()


@pytest.fixture
def state():
    """Of rank 0."""
    return Leader()


@pytest.fixture
def log(state):
    """In its loop."""
    made = ValueLog(state, optimizer(0.1), state, clock=lambda: state.seconds)
    made.begin(2)
    return made


def optimizer(*rates):
    """With a group for each learning rate."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups)


def values_of(told):
    """Name to mean, of all that was told."""
    return {name: found.mean for event in told for name, found in event.values.items()}


ALLOWED = {
    "int": (3, 3.0),
    "float": (0.5, 0.5),
    "bool": (True, 1.0),
    "nan": (math.nan, math.nan),
    "inf": (-math.inf, -math.inf),
    "tensor": (torch.tensor(2.0), 2.0),
    "tensor of one": (torch.tensor([2]), 2.0),
    "with a gradient": (torch.tensor(2.0, requires_grad=True) * 2, 4.0),
    "half": (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    "numpy": (np.float32(0.5), 0.5),
    "array": (np.array([[7]]), 7.0),
    "numpy's bool": (np.bool_(1), 1.0),
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_numbers_of_all_kinds_are_logged(log, state, kind):
    """Python's, NumPy's and tensors of one element; NaN is a number."""
    value, expected = ALLOWED[kind]
    log.log({"x": value})
    state.step(log, 2.0)
    found = values_of(state.told)["x"]
    assert found == expected or math.isnan(found) == math.isnan(expected)


REFUSED = {
    "text": ("0.5", "'x' is a str: must be a number"),
    "None": (None, "'x' is None: must be a number"),
    "list": ([1.0], "'x' is a list"),
    "vector": (torch.zeros(2), "'x' is a tensor of shape (2,)"),
    "empty": (torch.zeros(0), "'x' is a tensor of shape (0,)"),
    "complex": (1j, "'x' is a complex"),
    "complex tensor": (torch.tensor(1j), "'x' is a tensor of shape ()"),
    "array": (np.zeros(3), "'x' is a ndarray"),
    "text array": (np.array("a"), "'x' is a ndarray"),
    "decimal": (Decimal(1), "'x' is a Decimal"),
    "too large": (10**400, "'x' is an int"),
    "on no device": (torch.zeros((), device="meta"), "'x' is a tensor of shape ()"),
    "method": (torch.tensor(1.0).item, "'x' is a builtin"),
    "class": (float, "'x' is the class float"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_number_is_refused(log, kind):
    """In one line with its name, and what is allowed."""
    value, message = REFUSED[kind]
    with pytest.raises(UserError) as caught:
        log.log({"x": value})
    assert message in str(caught.value)
    assert "(int, float, bool, or a tensor or array of one real number)" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "1a", "ä", "a" * 65, "a\n", 'a"', 7, None, ("a",)])
def test_what_is_no_name_is_refused(log, name):
    """Names go into files, addresses and queries."""
    with pytest.raises(UserError, match="is no name: must be 1 to 64 letters"):
        log.log({name: 1.0})


def test_names_are_limited(log):
    """One for each sample, say, is a mistake."""
    log.log({f"n{number}": 0.0 for number in range(MAX_NAMES)})
    log.log({"n0": 1.0})
    with pytest.raises(UserError, match="'more' is one name too many: 100"):
        log.log({"more": 0.0})


def test_values_are_rolled_up(log, state):
    """Of each name count, mean, extremes, the last one and its step."""
    for number in range(15):
        log.log({"x": float(number)} | ({"once": 7} if number == 3 else {}))
        state.step(log, 0.07)
    (told,) = state.told
    assert (told.step, told.epoch, told.remaining_steps) == (15, 0, 200)
    x = told.values["x"]
    assert (x.step, x.count, x.mean, x.minimum, x.maximum, x.last) == (14, 15, 7.0, 0.0, 14.0, 14.0)
    assert (told.values["once"].step, told.values["once"].count) == (3, 1)
    assert told.values["loss"].count == 15
    assert told.values["learning_rate"].last == 0.1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.0, math.nan), (math.nan, 1.0, 1.0)),
        ((math.nan,), (math.nan, math.nan, math.nan)),
        ((math.inf, 1.0), (math.inf, 1.0, math.inf)),
    ],
)
def test_what_is_no_number_stays_where_it_is(log, state, values, expected):
    """In the mean, not in the extremes."""
    for value in values:
        log.log({"x": value})
    state.step(log, 2.0)
    found = state.told[0].values["x"]
    assert (found.mean, found.minimum, found.maximum) == pytest.approx(expected, nan_ok=True)


def test_a_week_is_told_in_some_thousand_parts(log, state):
    """Whatever is logged at each step."""
    num_steps = 200_000
    for _ in range(num_steps):
        log.log({"x": 1.0})
        state.step(log, 7 * 86_400 / num_steps)
    assert 10_000 < len(state.told) < 20_000
    assert sum(told.values["x"].count for told in state.told) > 0.999 * num_steps
    assert len(state.told[0].values) == 3


RATES = {
    "one": ((0.1,), {"learning_rate": 0.1}),
    "alike": ((0.1, 0.1), {"learning_rate": 0.1}),
    "unlike": ((0.1, 0.2), {"learning_rate.0": 0.1, "learning_rate.1": 0.2}),
    "tensors": ((torch.tensor(0.5), torch.tensor(0.5)), {"learning_rate": 0.5}),
}


@pytest.mark.parametrize("case", RATES)
def test_learning_rates_are_logged_by_themselves(state, case):
    """One where all groups have the same, else all."""
    rates, expected = RATES[case]
    log = ValueLog(state, optimizer(*rates), state, clock=lambda: state.seconds)
    log.begin(1)
    state.step(log, 2.0)
    found = values_of(state.told)
    del found["loss"]
    assert found == expected


def test_what_the_script_calls_loss_is_the_scripts(log, state):
    """Its own meaning counts, from then on alone."""
    state.step(log, 0.1)
    log.log({"loss": 9.0, "learning_rate": 3.0})
    state.step(log, 2.0)
    assert values_of(state.told) == {"loss": 9.0, "learning_rate": 3.0}


def test_only_one_worker_tells(log, state):
    """What others log costs nothing; who leads no more tells what it has."""
    state.is_leader = False
    log.log({"x": object()})
    state.step(log, 2.0)
    state.is_leader = True
    log.log({"x": 1.0})
    state.is_leader = False
    state.step(log, 2.0)
    state.is_leader = True
    state.step(log, 2.0)
    assert [set(told.values) for told in state.told] == [{"x"}, {"loss", "learning_rate"}]


def test_where_rank_0_has_no_samples_another_one_tells(state):
    """All that rank 0 would, and nothing that it has told itself."""
    state.is_leader = False
    parts = [None]
    log = ValueLog(state, optimizer(0.1), state, lambda: parts[-1], lambda: state.seconds)
    log.log({"before": 1})  # rank 0 tells it
    log.begin(2)
    state.step(log, 2.0)
    assert state.told == []
    for num_samples, first_sample, value in ((4, 0, 3.0), (4, 2, 4.0), (0, 0, 5.0)):
        parts.append(Slice(0, num_samples, 6, None, first_sample=first_sample, num_idle=1))
        log.log({"x": value})
        state.step(log, 0.1)
    log.end()
    (told,) = state.told
    assert (told.values["x"].count, told.values["x"].mean, told.values["loss"].count) == (1, 3.0, 1)


def test_what_is_logged_before_and_after_the_loop_counts(state):
    """Before it with the first step, after it at once."""
    log = ValueLog(state, optimizer(0.1), state, clock=lambda: state.seconds)
    log.log({"before": 1})
    log.begin(1)
    state.step(log, 0.1)
    log.end()
    log.log({"after": 2})
    told = {"before": 1.0, "loss": 0.5, "learning_rate": 0.1, "after": 2.0}
    assert values_of(state.told) == told
    assert [told.is_left for told in state.told] == [True, True]


@pytest.fixture
def fake(monkeypatch):
    """An accelerator that does nothing by itself."""
    found = FakeTorch()
    monkeypatch.setattr(accelerator, "torch", found)
    monkeypatch.setattr(accelerator, "time", SimpleNamespace(sleep=lambda _: found.advance()))
    return found


def test_a_tensor_on_a_device_is_not_waited_for(log, state, fake):
    """It is read when it has come, with the step at which it was logged; at the end all are."""
    tensor = DeviceTensor.on("cuda:0", 3.0, fake)
    log.log({"x": tensor})
    state.step(log, 2.0)
    assert "x" not in state.told[0].values
    fake.advance(100)
    state.step(log, 2.0)
    assert (state.told[1].values["x"].mean, state.told[1].values["x"].step) == (3.0, 0)
    log.log({"x": DeviceTensor.on("cuda:1", 4.0, fake)})
    log.end()
    assert state.told[2].values["x"].mean == 4.0


def test_tensors_on_their_way_are_limited(log, fake, monkeypatch):
    """The oldest is waited for, before memory is."""
    monkeypatch.setattr(logged_values, "MAX_COPYING", 3)
    for number in range(10):
        log.log({"x": DeviceTensor.on("cuda:0", float(number), fake)})
    assert len(log._copying) <= 3


@pytest.fixture
def told(monkeypatch):
    """What a trainer tells."""
    kept = []
    monkeypatch.setattr(WorkerContext, "tell", lambda _, message: kept.append(message))
    return kept


def trained(told, *, scheduler_interval="epoch", leave_after=None):
    """What was logged in two epochs of three steps."""
    model = nn.Linear(3, 1)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(sgd, 1, 0.5)
    loader = DataLoader(DATA, 4)
    trainer = Trainer(model, sgd, loader, scheduler=schedule, scheduler_interval=scheduler_interval)
    trainer.log(before=1)
    for _ in trainer.epochs(2):
        for x, y in trainer.batches():
            trainer.step(lambda a, b: nn.functional.mse_loss(model(a), b), x, y)
            trainer.log({"rate": sgd.param_groups[0]["lr"]}, steps=trainer.applied_steps)
        if leave_after:
            break
    trainer.log(after=2)
    return [message for message in told if isinstance(message, Logged)]


def test_a_trainer_logs_along_with_its_steps(told, monkeypatch):
    """Each value with its step, the rate with which the step was taken, and what is left."""
    monkeypatch.setattr(logged_values, "SHORTEST_SECONDS", 0.0)
    found = trained(told, scheduler_interval="step")
    rates = [event.values["learning_rate"].last for event in found if "loss" in event.values]
    assert rates[:6] == pytest.approx([0.1 * 0.5**number for number in range(6)])
    assert [event.remaining_steps for event in found][:6] == [5, 4, 3, 2, 1, 0]
    steps = [e.values["steps"] for e in found if "steps" in e.values]
    assert [(one.step, one.last) for one in steps] == [(n, float(n)) for n in range(1, 7)]
    assert {"before", "after"} <= {name for event in found for name in event.values}
    assert found[-1].is_left
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found[0]), type=Logged) == found[0]


@pytest.mark.parametrize("leave_after", [None, 1])
def test_a_short_training_loses_nothing(told, leave_after):
    """Nor one that is left early: all is told at its end."""
    found = trained(told, leave_after=leave_after)
    num_steps = 3 if leave_after else 6
    assert sum(e.values["steps"].count for e in found if "steps" in e.values) == num_steps
    assert found[-1].values["after"].last == 2.0
    assert (found[-1].is_left, found[-1].remaining_steps) == (True, 6 - num_steps)
