"""Random numbers go on from where they were."""

import random

import numpy as np
import torch

from hetero_hvd.worker.recovery.randomness import randomness, restore_randomness


def drawn():
    """One number from each generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002, S311


def test_what_was_drawn_is_drawn_again():
    """From Python's, NumPy's and torch's generators; an empty state changes nothing."""
    before = randomness()
    first, second = drawn(), drawn()
    assert first != second
    restore_randomness(before)
    assert drawn() == first
    restore_randomness({})
    assert drawn() == second
