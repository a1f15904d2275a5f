"""Looking for generators touches nothing that a script's object does not store."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from hetero_hvd.worker.data.own_generators import OwnGenerators, _parts
from hetero_hvd.worker.data.seeding import equal


class Settings:
    """Values by name, as configuration classes give them."""

    def __init__(self, **values):
        self.values = values

    def __getattr__(self, name):
        """Any name that is not stored."""
        return self.values[name]


class Unkind:
    """An object that answers to no name."""

    def __getattr__(self, name):
        """Never."""
        raise RuntimeError(name)


class Slotted:
    """An object without a dictionary, one of whose slots is empty."""

    __slots__ = ("empty", "own")

    def __init__(self):
        self.own = np.random.default_rng(1)


class Computed(dict):
    """A dictionary that makes what it gives when it is asked, as lazy imports do."""

    def items(self):
        """Never."""
        raise RuntimeError("asked")


@pytest.mark.parametrize(
    "kept",
    [Settings(), Unkind(), Slotted(), Computed(more=1)],
    ids=["settings", "unkind", "slotted", "computed"],
)
def test_an_object_that_raises_at_a_name_is_only_looked_at(kept):
    """A KeyError or RuntimeError of `__getattr__` is no error of the training."""
    own = np.random.default_rng(1)
    found = OwnGenerators({"dataset": [kept, own]})
    before = found.states()
    assert found.complaint(before) == ""
    own.random()
    assert "dataset" in found.complaint(before)


def test_a_generator_behind_such_an_object_is_found():
    """What it stores counts."""
    own = np.random.default_rng(1)
    found = OwnGenerators({"dataset": Settings(noise=own)})
    before = found.states()
    own.random()
    assert found.complaint(before)


def test_a_class_is_looked_at_as_a_whole():
    """However many methods come before what it keeps."""
    own = np.random.default_rng(1)
    large = type("Large", (), {f"name_{n}": n for n in range(300)} | {"noise": own})
    found = OwnGenerators({"dataset": large()})
    before = found.states()
    own.random()
    assert found.complaint(before)


COLLECTIONS = {
    "dictionary": ({1: 1, 2: 2}, lambda kept: kept.update({3: 3})),
    "set": ({1, 2}, lambda kept: kept.add(3)),
    "queue": (deque([1, 2]), lambda kept: kept.append(3)),
    "attributes": (Settings(), lambda kept: setattr(kept, "more", 3)),
}
"""Each with a change that another thread makes."""


@pytest.mark.parametrize(("kept", "change"), COLLECTIONS.values(), ids=COLLECTIONS)
def test_what_another_thread_changes_meanwhile_is_looked_at_as_it_was(kept, change):
    """No error of the training: a thread that loads or logs may add to what the script keeps."""
    parts = _parts("dataset", kept)
    assert next(parts)
    change(kept)
    assert len(list(parts)) >= 1


def test_what_changes_whenever_it_is_looked_at_is_left_out():
    """What lies beside it is found."""

    class Restless(set):
        """Never the same twice."""

        def __iter__(self):
            """As of a set that another thread changes in that moment."""
            raise RuntimeError("Set changed size during iteration")

    own = np.random.default_rng(1)
    found = OwnGenerators({"dataset": [Restless({1}), own]})
    before = found.states()
    own.random()
    assert "dataset" in found.complaint(before)


def test_samples_of_such_objects_are_compared_as_far_as_they_can_be():
    """What cannot be looked into counts as equal, and raises nothing."""
    assert equal(Settings(), Settings(noise=1))
    assert not equal((Settings(), 1), (Settings(), 2))
