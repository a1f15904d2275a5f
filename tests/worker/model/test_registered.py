"""What a model has registered is asked at each step: whatever a script changes is seen at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hetero_hvd.worker.model.registered import Registered


class Inner(nn.Module):
    """One of each kind."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_buffer("nothing", None)


def freeze(model):
    """One parameter."""
    model.inner.layer.weight.requires_grad_(False)


def put_register(model):
    """The whole dict of a module's parameters."""
    model.inner.layer._parameters = {"weight": nn.Parameter(torch.zeros(2, 2))}


def persist(model):
    """A buffer that was none of the state."""
    model.inner.register_buffer("cache", model.inner.cache, persistent=True)


def rename(model):
    """The same parameter by another name."""
    model.inner.layer.other = model.inner.layer._parameters.pop("bias")


CHANGES = {
    "a parameter is added": (lambda m: setattr(m, "more", nn.Parameter(torch.zeros(1))), True),
    "one is taken away": (lambda m: delattr(m.inner.layer, "bias"), True),
    "one is taken for another": (
        lambda m: setattr(m.inner.layer, "bias", nn.Parameter(torch.zeros(2))),
        True,
    ),
    "one is None": (lambda m: setattr(m.inner.layer, "bias", None), True),
    "one has another name": (rename, True),
    "one is frozen": (freeze, True),
    "one has another type": (lambda m: m.inner.layer.double(), True),
    "one has another shape": (
        lambda m: setattr(m.inner.layer.bias, "data", torch.zeros(3)),
        True,
    ),
    "a register is put in": (put_register, True),
    "a layer is added": (lambda m: m.add_module("head", nn.Linear(2, 1)), True),
    "a layer is taken away": (lambda m: delattr(m.inner, "layer"), True),
    "a layer is taken for another": (lambda m: setattr(m.inner, "layer", nn.Linear(2, 2)), True),
    "a buffer is added": (lambda m: m.register_buffer("seen", torch.zeros(1)), True),
    "a buffer is there now": (lambda m: setattr(m.inner, "nothing", torch.zeros(1)), True),
    "a buffer has another type": (lambda m: m.inner.norm.double(), True),
    "a buffer is kept": (persist, True),
    "a buffer is another tensor": (
        lambda m: setattr(m.inner.norm, "running_mean", torch.ones(2)),
        False,
    ),
    "what is no part of the state": (lambda m: setattr(m.inner, "cache", torch.zeros(9)), False),
    "values": (lambda m: nn.init.ones_(m.inner.layer.weight), False),
    "nothing": (lambda _: None, False),
}


@pytest.mark.parametrize(("change", "is_another"), CHANGES.values(), ids=CHANGES.keys())
def test_a_look_finds_what_a_first_one_would(change, is_another):
    """The names, the tensors, and what is part of the state; also at the second look."""
    model = nn.Module()
    model.inner = Inner()
    asked = Registered(model)
    assert asked.look()
    assert not asked.look()
    change(model)
    assert asked.look() == is_another
    fresh = Registered(model)
    fresh.look()
    for _ in range(2):
        assert list(asked.parameters) == list(fresh.parameters)
        assert all(map(lambda a, b: a is b, asked.parameters.values(), fresh.parameters.values()))
        assert asked._lines() == fresh._lines()
        mine, theirs = (
            [(place.name, place.is_persistent, id(place.get())) for place in each.places]
            for each in (asked, fresh)
        )
        assert mine == theirs
        assert not asked.look()
    asked.forget()
    assert asked.look()


def test_a_look_walks_the_model_only_where_something_may_have_changed(monkeypatch):
    """It is asked at each step."""
    model = nn.Module()
    model.inner = Inner()
    asked = Registered(model)
    asked.look()
    walks = []
    walk = nn.Module.named_modules
    monkeypatch.setattr(
        nn.Module,
        "named_modules",
        lambda m, *given, **named: walks.append(m) or walk(m, *given, **named),
    )
    asked.look()
    assert not walks
    freeze(model)
    asked.look()
    assert walks
