"""The global generators go on after a course of their own as if there had been none."""

from __future__ import annotations

# ruff: noqa: NPY002, S311 - the generators that scripts use
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hetero_hvd.worker.data.seeding import own_course

DRAWS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a number of each": lambda: (random.random(), np.random.rand(), torch.rand(())),
    "a normal number, whose twin is kept": np.random.randn,
    "two normal numbers": lambda: np.random.randn(2),
    "more than NumPy has ready": lambda: np.random.rand(700),
    "new seeds": lambda: (random.seed(5), np.random.seed(5), torch.manual_seed(5)),
    "another generator of NumPy": lambda: np.random.set_bit_generator(np.random.PCG64(7)),
    "a Mersenne Twister of the script": lambda: np.random.set_bit_generator(np.random.MT19937(7)),
}


@pytest.fixture(autouse=True)
def generator_of_numpy() -> Iterator[None]:
    """What a test puts in its place is taken out again."""
    before = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(before)


@pytest.mark.parametrize("between", DRAWS)
@pytest.mark.parametrize(
    "within", ["nothing", "a number of each", "a normal number, whose twin is kept"]
)
@pytest.mark.parametrize("seed", [None, 3])
def test_generators_go_on(between: str, within: str, seed: int | None) -> None:
    """Whatever is drawn within the courses of several steps and between them."""

    def drawn(*, has_courses: bool) -> list[Any]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        found: list[Any] = []
        for _ in range(3):
            found.append(repr(DRAWS[between]()))
            if has_courses:
                with own_course(seed):
                    DRAWS[within]()
            if between != "nothing":
                found += [random.random(), float(np.random.randn()), float(torch.rand(()))]
        return [*found[1:], random.random(), float(np.random.rand()), float(torch.rand(()))]

    before = np.random.get_bit_generator()
    expected = drawn(has_courses=False)
    np.random.set_bit_generator(before)
    assert drawn(has_courses=True) == expected


def test_seeded_course_is_the_same_each_time() -> None:
    """Also where the state before it is known already."""
    found = []
    for _ in range(3):
        with own_course(9):
            found.append((random.random(), float(np.random.randn()), float(torch.rand(()))))
    assert len(set(found)) == 1
