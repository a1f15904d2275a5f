"""Whatever a state dict may hold comes back from disk and from another worker, or is refused."""

from __future__ import annotations

import enum
import functools
import inspect
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from hetero_hvd.errors import UserError
from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.worker.recovery.checkpoints.series import Checkpoints
from hetero_hvd.worker.recovery.replica import Replica, packed, unpacked

Pair = namedtuple("Pair", ["first", "second"])  # noqa: PYI024 - as scripts write it


class Colour(enum.Enum):
    """A choice of a script."""

    RED = "red"


class Level(enum.IntEnum):
    """One that is a number too."""

    HIGH = 3


class Held:
    """A part of a script's that holds one thing."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        """As scripts do."""
        return {"param_groups": [{"lr": self.value}]}

    def load_state_dict(self, state):
        """As scripts do."""
        self.value = state["param_groups"][0]["lr"]


COMES_BACK = {
    "float64": np.float64(0.1),
    "float32": np.float32(0.1),
    "int64": np.int64(-3),
    "bool_": np.True_,
    "str_": np.str_("x"),
    "array": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "array of nothing": np.zeros((0, 2), np.int8),
    "NumPy type": np.dtype("float32"),
    "counter": Counter({3: 2, 1: 1}),
    "ordered": OrderedDict([("b", 1), ("a", np.int8(2))]),
    "default": defaultdict(list, {"a": [1]}),
    "default of nothing": defaultdict(None, {"a": 1}),
    "set": {"b", "a"},
    "frozen set": frozenset({1, 2}),
    "deque": deque([1, 2], maxlen=3),
    "named tuple": Pair(np.float64(1.5), {"x": torch.ones(2)}),
    "enum": Colour.RED,
    "enum of numbers": Level.HIGH,
    "range": range(1, 9, 2),
    "slice": slice(1, None),
    "complex": 1 + 2j,
    "bytes": b"\0\xff",
    "nothing": None,
    "NaN": float("nan"),
    "large": 2**200,
    "type": torch.bfloat16,
    "device": torch.device("cpu"),
    "shape": torch.Size([2, 3]),
    "tuple": (1, (2.0, "3")),
    "keys": {(1, 2): "a", np.int64(3): "b", Colour.RED: "c"},
    "a key of ours": {"hetero_hvd.kind": "set"},
    "number": torch.tensor(0.1),
    "parameter": nn.Parameter(torch.ones(2)),
    "view": torch.eye(4)[::2, 1],
}


def same(one, other):
    """Equal, of the same type, NaN and tensors included."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list | deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other or (one != one and other != other)  # noqa: PLR0124 - NaN


@pytest.mark.parametrize("value", COMES_BACK.values(), ids=COMES_BACK.keys())
def test_what_a_state_may_hold_comes_back(tmp_path, value):
    """From a checkpoint it is equal and of the same type, and so is the digest of the state."""
    replica = Replica({"part": Held(value)})
    assert replica.prove() >= 0
    settings = CheckpointSettings(folder=str(tmp_path), run="one")
    checkpoints = Checkpoints(settings, replica)
    checkpoints.save(1)
    checkpoints.wait()
    copy = Held(None)
    assert Checkpoints(settings, Replica({"part": copy})).load_newest()
    expected = value.detach() if isinstance(value, nn.Parameter) else value
    assert same(copy.value, expected)
    assert Replica({"part": copy}).checksum() == replica.checksum()


def itself():
    """A list that holds itself."""
    found = []
    found.append(found)
    return found


class Local:
    """No plain data."""


REFUSED = {
    "object": (Local(), "Local: cannot be kept"),
    "function": (lambda x: x, "builtins.function: cannot"),
    "partial": (functools.partial(max), "functools.partial: cannot"),
    "class": (Local, "builtins.type: cannot"),
    "array of objects": (np.array([Local()]), "an array of object: cannot"),
    "default of its own": (defaultdict(lambda: 1), "a defaultdict with a function of its own"),
    "tensors as keys": ({torch.ones(1): 1}, "a dict with tensors as keys"),
    "sparse": (torch.eye(2).to_sparse(), "a tensor of torch.sparse_coo"),
    "meta": (torch.ones(2, device="meta"), "a tensor on the meta device"),
    "lazy": (nn.UninitializedParameter(), "UninitializedParameter: cannot"),
    "generator": (torch.Generator(), "Generator: cannot"),
    "local class": (namedtuple("Hidden", "x")(1), "Hidden, which is not at the top of a module"),  # noqa: PYI024
}


@pytest.mark.parametrize(("value", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_loaded_back_is_refused_by_its_place(value, words):
    """Before training, in one line that says where it is and what to do."""
    for name, place in (("optimizer", "optimizer.param_groups[0].lr: "), ("ema", "extra_state['e")):
        with pytest.raises(UserError) as caught:
            Replica({name: Held(value)}).prove()
        assert place in str(caught.value)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_state_that_holds_itself_is_refused():
    """There is no place to name but its part."""
    with pytest.raises(UserError, match="extra_state\\['part'\\]: its state holds itself"):
        Replica({"part": Held(itself())}).prove()


def test_a_forged_class_is_not_looked_for():
    """A state may name enums and named tuples that the script has, and nothing else."""
    for kind, name in (("enum", ["os", "system"]), ("record", ["subprocess", "Popen"])):
        forged = {"hetero_hvd.kind": kind, "parts": [name, ["touch /tmp/forged"]]}
        with pytest.raises(UserError, match="is no "):
            unpacked(packed(forged))


OPTIMIZERS = [
    cls
    for _, cls in inspect.getmembers(torch.optim, inspect.isclass)
    if issubclass(cls, torch.optim.Optimizer) and cls.__name__ not in ("Optimizer", "SparseAdam")
]
SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.5 * (1 + np.cos(e / 9))),
    "LambdaLR of a partial": lambda o: lr_scheduler.LambdaLR(o, functools.partial(max, 1)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: np.float32(0.9)),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3, 3]),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o)]),
    "ReduceLROnPlateau": lr_scheduler.ReduceLROnPlateau,
}
CHOICES = [(cls, "StepLR") for cls in OPTIMIZERS] + [(torch.optim.Adam, s) for s in SCHEDULERS]


def trained(optimizer_class, schedule, *, steps):
    """A model, its optimizer and its scheduler after some steps."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False)
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    scheduler = SCHEDULERS[schedule](optimizer)
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 3)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        scheduler.step(*[1.0] * (schedule == "ReduceLROnPlateau"))
    return Replica({"model": model, "optimizer": optimizer, "scheduler": scheduler})


@pytest.mark.parametrize(("optimizer", "schedule"), CHOICES, ids=lambda each: str(each)[-30:])
def test_every_optimizer_and_scheduler_comes_back(tmp_path, optimizer, schedule):
    """Those of torch, after some steps, into ones that have not begun."""
    source, copy = (trained(optimizer, schedule, steps=steps) for steps in (3, 0))
    source.prove()
    settings = CheckpointSettings(folder=str(tmp_path), run="one")
    checkpoints = Checkpoints(settings, source)
    checkpoints.save(3)
    checkpoints.wait()
    assert Checkpoints(settings, copy).load_newest()
    assert copy.checksum() == source.checksum()
