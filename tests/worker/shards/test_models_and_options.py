"""Models, optimizers and options of each kind train in parts as whole, bit for bit.

So does what is kept on disk of them, whatever the script that goes on from it says.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from rendezvous import Hub, run_together
from sharded_script import give_room
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader, TensorDataset

from hetero_hvd import Trainer
from hetero_hvd.errors import UserError

EPOCHS, STEPS, BATCH = 2, 4, 6
LAST = EPOCHS * STEPS
CHANGED_AT = 3
X = torch.randn(STEPS * BATCH, 16, generator=torch.Generator().manual_seed(1))


class Odd(nn.Module):
    """Has parameters of each shape and use, and buffers of each type."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.wide = nn.Parameter(torch.randn(40, 16, generator=draw) / 4)
        self.kernel = nn.Parameter(torch.randn(2, 3, 4, 5, generator=draw))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.unused = nn.Parameter(torch.ones(300))
        self.at_times = nn.Parameter(torch.ones(300))
        self.frozen = nn.Parameter(torch.ones(300), requires_grad=False)
        self.back = nn.Linear(40, 16, bias=False)
        self.again = nn.Linear(40, 16, bias=False)
        with torch.no_grad():
            self.back.weight.copy_(self.wide.t())
        self.again.weight = self.back.weight
        self.to(dtype)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("phase", torch.ones(3, dtype=torch.complex64))
        self.register_buffer("passing", torch.ones(3), persistent=False)

    def forward(self, x, step):
        """Some parameters take part in each other step only."""
        hidden = torch.tanh(x.to(self.wide.dtype) @ self.wide.t()) * self.scale
        out = self.back(hidden) + self.again(hidden.square()) + self.kernel.sum() / 100
        out = out + self.frozen.mean() + self.empty.sum()
        return out + self.at_times.mean() if step % 2 else out


def in_two_groups(model, **options):
    """As language models are trained: without decay, and faster, where there is one dimension."""
    split = [[], []]
    for each in model.parameters():
        split[each.dim() < 2].append(each)
    first, second = ({"params": those} for those in split)
    return torch.optim.AdamW(
        [first, second | {"lr": 0.1, "weight_decay": 0.0, "betas": (0.5, 0.9)}], lr=0.01, **options
    )


def adamw(**options):
    """With these options."""
    return lambda model: torch.optim.AdamW(model.parameters(), **{"lr": 0.01, **options})


def sgd(**options):
    """With these options."""
    return lambda model: torch.optim.SGD(model.parameters(), **{"lr": 0.01, **options})


def unfreeze(script):
    """It is trained from now on."""
    script.model.frozen.requires_grad_()


def freeze(script):
    """It is not trained any more."""
    script.model.wide.requires_grad_(False)


def decay(script):
    """An option that was off is on."""
    for group in script.optimizer.param_groups:
        group["weight_decay"] = 0.1


class Kind(NamedTuple):
    """What is trained, and how.

    Attributes:
        optimizer: Of the model.
        options: Of the trainer.
        dtype: Of the model.
        changes: Called with the script after a step.
        scheduler: Of the optimizer; None: there is none.
        spoiled: A step whose loss is no number; 0: none.
    """

    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw()
    options: Mapping[str, Any] = MappingProxyType({})
    dtype: torch.dtype = torch.float32
    changes: Callable[[Script], object] = id
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    spoiled: int = 0


def one_cycle(optimizer):
    """It changes learning rates and betas."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=LAST + 1)


def warmed(optimizer):
    """It begins with a learning rate of 0."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3))


KINDS = {
    "AdamW": Kind(),
    "amsgrad": Kind(adamw(amsgrad=True, maximize=True)),
    "foreach": Kind(adamw(foreach=True)),
    "one tensor at a time": Kind(adamw(foreach=False)),
    "fused": Kind(adamw(fused=True)),
    "a learning rate that is a tensor": Kind(adamw(lr=torch.tensor(0.01), foreach=False)),
    "named": Kind(lambda model: torch.optim.AdamW(model.named_parameters(), lr=0.01)),
    "two groups": Kind(in_two_groups),
    "two groups, fused": Kind(lambda model: in_two_groups(model, fused=True)),
    "some parameters alone": Kind(
        lambda model: torch.optim.AdamW([model.scale, model.kernel], lr=0.01)
    ),
    "momentum": Kind(sgd(momentum=0.9, nesterov=True, weight_decay=0.1)),
    "Adagrad": Kind(lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01)),
    "RMSprop": Kind(
        lambda model: torch.optim.RMSprop(model.parameters(), centered=True, momentum=0.9)
    ),
    "NAdam": Kind(lambda model: torch.optim.NAdam(model.parameters())),
    "Adadelta": Kind(lambda model: torch.optim.Adadelta(model.parameters())),
    "Rprop": Kind(lambda model: torch.optim.Rprop(model.parameters())),
    "float64": Kind(dtype=torch.float64),
    "bfloat16": Kind(dtype=torch.bfloat16),
    "float16": Kind(adamw(lr=1e-3, eps=1e-4), dtype=torch.float16),
    "momentum in bfloat16": Kind(sgd(momentum=0.9), dtype=torch.bfloat16),
    "unfrozen in mid-training": Kind(changes=unfreeze),
    "frozen in mid-training": Kind(changes=freeze),
    "decayed in mid-training": Kind(sgd(momentum=0.9), changes=decay),
    "one cycle": Kind(scheduler=one_cycle),
    "warmed": Kind(scheduler=warmed),
    "warmed Adagrad": Kind(
        lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01), scheduler=warmed
    ),
    "accumulated": Kind(options={"accumulation_steps": 2}),
    "one sample at a time": Kind(options={"micro_batch_size": 1}),
    "in half the bytes": Kind(options={"compression": "fp16"}),
    "in half the bytes with feedback": Kind(options={"compression": "fp16-feedback"}),
    "clipped to nothing": Kind(options={"clip": lambda those: clip_grad_norm_(those, 0.0)}),
    "clipped by value": Kind(options={"clip": lambda those: clip_grad_value_(those, 1e-3)}),
    "a step of no numbers": Kind(
        options={"clip": lambda those: clip_grad_norm_(those, 1.0)}, spoiled=CHANGED_AT
    ),
    "no gradients that count": Kind(adamw(lr=0.0)),
}


class Script:
    """Trains with parts or without."""

    def __init__(self, context, kind, *, mode=True, kept=None):
        self.kind = kind
        self.model = Odd(kind.dtype)
        self.optimizer = kind.optimizer(self.model)
        scheduler = kind.scheduler and kind.scheduler(self.optimizer)
        self.trainer = Trainer(
            self.model,
            self.optimizer,
            DataLoader(TensorDataset(X), BATCH, shuffle=True),
            scheduler=scheduler,
            scheduler_interval="step",
            after_step=self.after_step,
            shard_optimizer=mode,
            **kind.options,
        )
        self.state = self.trainer._state
        self.state._context = context
        self.shards = self.state._kept.shards
        self.kept = None
        if self.shards is not None:
            give_room(self.shards, 24)
            self.shards.wishes.wants_one = self.is_last
        self.state._kept.step_done = self.step_done
        if kept is not None:
            self.state.replica.resume(kept)
            self.state._has_loaded = True

    def after_step(self):
        """The script changes something."""
        if self.trainer.applied_steps == CHANGED_AT:
            self.kind.changes(self)

    @property
    def num_steps(self):
        """In all."""
        return LAST // self.kind.options.get("accumulation_steps", 1)

    def is_last(self):
        """Whether the step under way is."""
        return self.trainer.applied_steps == self.num_steps - 1

    def step_done(self):
        """Keep what a checkpoint would hold."""
        is_whole = self.shards is None or not self.shards.is_cut or self.shards.is_collected
        if is_whole and self.trainer.applied_steps == self.num_steps:
            self.kept = self.state.replica.snapshot()

    def loss(self, x):
        """How far the model is from giving back what it is given."""
        step = self.trainer.applied_steps
        loss = (self.model(x, step) - x).square().mean().float()
        return loss * (math.nan if self.kind.spoiled and step == self.kind.spoiled else 1)

    def run(self, epochs=EPOCHS):
        """All epochs."""
        for _ in self.trainer.epochs(epochs):
            for (x,) in self.trainer.batches():
                self.trainer.step(self.loss, x)
        return self

    @property
    def values(self):
        """Of all parameters."""
        return [each.detach().clone() for each in self.model.parameters()]


def train(kind, num_workers=3, faults=(), **options):
    """By so many workers; all who are left have the same."""
    hub = Hub(num_workers, faults)
    scripts = run_together(hub, lambda context: Script(context, kind, **options).run())
    assert hub.fired == hub.faults
    for script in scripts:
        assert script.trainer.applied_steps == script.num_steps
        assert all(map(torch.equal, script.values, scripts[0].values))
    return scripts[0]


def assert_same_state(found, wanted):
    """But for what has no elements, which nothing depends on."""
    assert found["param_groups"] == wanted["param_groups"]
    numbers = {n for n, state in wanted["state"].items() if all(map(torch.numel, tensors(state)))}
    assert {n for n, state in found["state"].items() if state} == numbers
    for number in numbers:
        assert found["state"][number].keys() == wanted["state"][number].keys()
        pairs = zip(tensors(found["state"][number]), tensors(wanted["state"][number]), strict=True)
        for one, other in pairs:
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


def tensors(state):
    """All values."""
    return [torch.as_tensor(value) for _, value in sorted(state.items())]


SHORT = {"AdamW", "two groups, fused", "one cycle", "the checkpoint has amsgrad"}
SHORT |= {"the checkpoint is of float32", "another order"}
"""What is tried each time; all else in the matrix."""


def cases(table):
    """Of which most take part in the matrix only."""
    marks = {True: (), False: pytest.mark.matrix}
    return [pytest.param(each, id=name, marks=marks[name in SHORT]) for name, each in table.items()]


@pytest.mark.parametrize("kind", cases(KINDS))
def test_each_kind_has_the_bits_of_the_whole(kind):
    """Of the model and of the optimizer's state."""
    plain, parts = train(kind, mode=False), train(kind)
    assert all(map(torch.equal, parts.values, plain.values))
    assert_same_state(parts.kept["optimizer"], plain.kept["optimizer"])


FAULTS = [
    [(0, "gradients.0.0", 3, "after"), (1, "totals.0", 6, "sent")],
    [(2, "shards.parameters.0", 4, "unsent")],
]


@pytest.mark.parametrize("faults", FAULTS, ids=["hears nothing, is killed", "killed in an update"])
@pytest.mark.matrix
@pytest.mark.parametrize(
    "kind", [each for each in cases(KINDS) if "accumulation_steps" not in each.values[0].options]
)
def test_a_fault_changes_nothing_of_it(kind, faults):
    """But for the order of sums; where they are not exact, some digits."""
    plain = train(kind, mode=False)
    parts = train(kind, num_workers=4, faults=faults)
    digits = 1e-6 if kind.dtype.itemsize > 2 and "compression" not in kind.options else 2e-2
    for one, other in zip(parts.values, plain.values, strict=True):
        torch.testing.assert_close(one, other, atol=digits, rtol=digits)


class Resumed(NamedTuple):
    """One script leaves a checkpoint, and another one goes on from it.

    Attributes:
        first: What was trained.
        then: What is trained.
        words: With which it is refused; empty: it is not.
    """

    first: Kind
    then: Kind
    words: str = ""


def reordered(model):
    """The parameters the other way round."""
    return torch.optim.AdamW([model.at_times, model.wide, model.scale], lr=0.01)


def in_order(model):
    """As many parameters."""
    return torch.optim.AdamW([model.wide, model.at_times, model.scale], lr=0.01)


RESUMED = {
    "as it was": Resumed(Kind(), Kind()),
    "the checkpoint has amsgrad": Resumed(Kind(adamw(amsgrad=True)), Kind()),
    "the script has amsgrad": Resumed(Kind(), Kind(adamw(amsgrad=True))),
    "the checkpoint has momentum": Resumed(Kind(sgd(momentum=0.9)), Kind(sgd())),
    "the script has momentum": Resumed(Kind(sgd()), Kind(sgd(momentum=0.9))),
    "the checkpoint is of float32": Resumed(Kind(), Kind(dtype=torch.bfloat16)),
    "the checkpoint is of bfloat16": Resumed(Kind(dtype=torch.bfloat16), Kind()),
    "the checkpoint is fused": Resumed(Kind(adamw(fused=True)), Kind()),
    "the script is fused": Resumed(Kind(), Kind(adamw(fused=True))),
    "another optimizer": Resumed(Kind(), Kind(sgd()), "the optimizer was torch.optim"),
    "another order": Resumed(Kind(in_order), Kind(reordered), "in the same order"),
    "fewer parameters": Resumed(Kind(), Kind(in_order), "doesn't match the size"),
    "other groups": Resumed(Kind(), Kind(in_two_groups), "different number of parameter groups"),
}


@pytest.mark.parametrize("mode", [True, pytest.param("auto", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("case", cases(RESUMED))
def test_another_script_goes_on_as_without_parts(case, mode):
    """From a checkpoint that was left in parts; or it is told why not, in one line."""
    left = train(case.first).kept

    def go_on(context, mode):
        script = Script(context, case.then, mode=mode, kept=copy.deepcopy(left))
        return script.run(2 * EPOCHS)

    def run(mode):
        return run_together(Hub(3), lambda context: go_on(context, mode))

    if case.words:
        with pytest.raises(UserError, match=case.words) as error:
            run(mode)
        assert "\n" not in str(error.value)
    else:
        plain = run(False)[0]
        for script in run(mode):
            assert script.trainer.applied_steps == 2 * LAST
            assert all(map(torch.equal, script.values, plain.values))


def begin_momentum(script):
    """Of each element more is kept from now on."""
    for group in script.optimizer.param_groups:
        group["momentum"] = 0.9


def step_it(script):
    """With the gradients of this worker, beside the trainer."""
    script.model.scale.grad = torch.ones(())
    script.optimizer.step()


LATE = {
    "the optimizer keeps momentum_buffer since its options": Kind(sgd(), changes=begin_momentum),
    "a state was loaded into the optimizer": Kind(changes=step_it),
}


@pytest.mark.parametrize("words", LATE)
def test_what_cannot_be_cut_in_mid_training_is_refused_in_one_line(words):
    """On all workers."""
    with pytest.raises(UserError, match=words) as error:
        train(LATE[words])
    assert "\n" not in str(error.value)


@pytest.mark.matrix
def test_trainers_one_after_the_other_and_further_epochs_have_parts_of_their_own():
    """Of whose workers one is lost in the second training, and one in the third."""

    def train_all(context, *, mode):
        first = Script(context, KINDS["AdamW"], mode=mode).run()
        second = Script(context, KINDS["two groups"], mode=mode).run()
        return [*first.values, *first.run(EPOCHS + 1).values, *second.values]

    plain = run_together(Hub(3), lambda context: train_all(context, mode=False))[0]
    hub = Hub(4, [(0, "totals.0", LAST + 4, "sent"), (1, "totals.0", 2 * LAST + 3, "unsent")])
    found = run_together(hub, lambda context: train_all(context, mode=True))
    assert hub.fired == hub.faults
    assert len(found) == 2
    for values in found:
        for one, other in zip(values, plain, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_a_model_without_shapes_is_told_so():
    """Before its optimizer is tried."""
    model = nn.Sequential(nn.LazyLinear(3))
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(UserError, match="has no shape yet"):
        Trainer(model, optimizer, DataLoader(TensorDataset(X), BATCH), shard_optimizer=True)
