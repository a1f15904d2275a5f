"""What a sampler draws follows from seed and epoch, for ever, and is as likely as it should be."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from hetero_hvd.core.data.sampling import chosen, uniform, weighted

WEIGHTS = np.array([0.0, 1.0, 2.0, 5.0, 0.0, 2.0])
DRAWS = {
    "with replacement": lambda **at: uniform(6, 9, replacement=True, **at),
    "a part": lambda **at: uniform(6, 4, replacement=False, **at),
    "more than there are": lambda **at: uniform(6, 15, replacement=False, **at),
    "weighted": lambda **at: weighted(WEIGHTS, 9, replacement=True, **at),
    "weighted, each once": lambda **at: weighted(WEIGHTS, 4, replacement=False, **at),
    "subset": lambda **at: chosen(np.array([7, 3, 5, 1, 8]), **at),
}
FROZEN = "039c41af73d31ccbf72adfb9919e0b6897d0c3fc89c5a0e0c7870193bfd0a742"
"""Of all draws of seed 7, epoch 2."""


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_it_follows_from_seed_and_epoch(draw):
    """The same for the same, and other samples for another seed or epoch."""
    found = [draw(seed=seed, epoch=epoch).tolist() for seed in range(3) for epoch in range(3)]
    again = [draw(seed=seed, epoch=epoch).tolist() for seed in range(3) for epoch in range(3)]
    assert found == again
    assert len(set(map(tuple, found))) > 6


def test_it_is_frozen():
    """Another version of NumPy on another node must give the same, as must a resume in a year."""
    found = b"".join(draw(seed=7, epoch=2).tobytes() for draw in DRAWS.values())
    assert hashlib.sha256(found).hexdigest() == FROZEN


def test_how_often_each_sample_comes():
    """As the weights say; each at most once, or as evenly as can be, without replacement."""
    counts = np.bincount(weighted(WEIGHTS, 100_000, replacement=True, seed=0, epoch=0), minlength=6)
    assert counts / 100_000 == pytest.approx(WEIGHTS / 10, abs=0.01)
    assert np.bincount(uniform(6, 60_000, replacement=True, seed=0, epoch=0)).min() > 9_500
    once = weighted(WEIGHTS, 4, replacement=False, seed=0, epoch=0)
    assert sorted(once) == [1, 2, 3, 5]
    several = np.bincount(uniform(6, 15, replacement=False, seed=0, epoch=0))
    assert set(several) == {2, 3}
    assert sorted(chosen(np.array([7, 3, 5]), seed=0, epoch=0)) == [3, 5, 7]
    assert len(uniform(6, 0, replacement=False, seed=0, epoch=0)) == 0
