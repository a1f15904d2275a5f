"""Random numbers that depend on what is computed, not on who computes it or when."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import torch

from hetero_hvd.core.data.grains import Stream, seed_of
from hetero_hvd.worker import accelerator


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (for all devices).

    Args:
        seed: 64 bits.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that scripts use
    # `torch.manual_seed` formats a traceback for each kind of device: a millisecond.
    torch.default_generator.manual_seed(seed)
    accelerator.seed_all(seed)


@contextmanager
def own_course(seed: int | None = None) -> Iterator[None]:
    """Inside, the global generators go their own way; afterwards they are as they were before.

    Args:
        seed: Where they start; None: where they are.
    """
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    of_numpy = _numpy_states.read()
    on_devices = accelerator.random_states()
    if seed is not None:
        seed_all(seed)
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
        accelerator.restore_random_states(on_devices)


class NumpyStates:
    """The state of NumPy's global generator, which is read anew only where numbers were drawn.

    NumPy copies its 624 numbers one by one, which takes longer than all other generators together;
    that the memory in which it keeps them is as it was is seen at once. A normal number that is
    kept for the next call lies elsewhere: with one the state is read each time.
    """

    def __init__(self) -> None:
        self._generator: object = None
        self._address = 0
        self._memory = b""
        self._state: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """As `np.random.set_state` takes it."""
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if generator is not self._generator:  # a script may have put another one there
            if type(generator) is not np.random.MT19937:
                return self._whole()
            self._generator = generator
            self._address = generator.ctypes.state_address
        memory = ctypes.string_at(self._address, _NUMPY_BYTES)
        if memory == self._memory:
            return self._state
        state = self._whole()
        key = state["state"]["key"]
        state["state"]["key"] = key.tolist()  # from a list it is restored three times as fast
        is_all = memory == key.tobytes() + state["state"]["pos"].to_bytes(4, sys.byteorder)
        if is_all and not state["has_gauss"]:
            self._memory = memory
            self._state = state
        return state

    @staticmethod
    def _whole() -> dict[str, Any]:
        state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002 - as scripts use it
        return state


_NUMPY_BYTES = 624 * 4 + 4
"""Of the Mersenne Twister's numbers, and of the place of the next one."""

_numpy_states = NumpyStates()


@dataclass(frozen=True)
class Seeds:
    """The seeds of one step.

    Attributes:
        seed: The run's.
        epoch: Epoch.
        step: Step in the epoch.
    """

    seed: int
    epoch: int
    step: int

    def use(self, stream: Stream, grain: int = 0) -> None:
        """Seed all generators for one purpose."""
        seed_all(seed_of(self.seed, self.epoch, self.step, grain, stream))


def equal(one: Any, other: Any) -> bool:  # noqa: ANN401 - samples of any kind
    """Whether two samples, batches or results are the same, as far as they can be looked into."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor | np.ndarray) or hasattr(type(one), "__array_interface__"):
        return _equal_arrays(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(equal, one, other))
    if is_dataclass(one):
        return equal(vars(one), vars(other))
    return not isinstance(one, int | float | str | bytes) or one == other or one != one  # noqa: PLR0124


def _equal_arrays(one: Any, other: Any) -> bool:  # noqa: ANN401 - tensors, arrays, images
    if isinstance(one, torch.Tensor):
        is_dense = one.layout is torch.strided and other.layout is torch.strided
        return not is_dense or torch.equal(one.nan_to_num(), other.nan_to_num())
    one, other = np.asarray(one), np.asarray(other)
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
