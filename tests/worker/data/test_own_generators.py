"""Looking for generators touches nothing that a script's object does not store."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_hvd.worker.data.own_generators import OwnGenerators
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


def test_samples_of_such_objects_are_compared_as_far_as_they_can_be():
    """What cannot be looked into counts as equal, and raises nothing."""
    assert equal(Settings(), Settings(noise=1))
    assert not equal((Settings(), 1), (Settings(), 2))
