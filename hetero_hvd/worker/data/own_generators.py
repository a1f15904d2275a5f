"""Finds the random generators that users' objects own, and tells when one is drawn from.

The global generators are seeded wherever it matters. A generator of a script's own is not: what it
gives depends on how often this worker has drawn from it, hence on the division of the work.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from hetero_hvd.worker.accelerator import generators as accelerator_generators

MAX_OBJECTS, MAX_ITEMS = 20_000, 100
"""How many objects are looked at, and how many items of each collection."""

TRIES = 10
"""How often a collection is copied that another thread changes."""

Item = TypeVar("Item")

LEAVES = (str, bytes, int, float, complex, ModuleType, np.ndarray, np.generic, torch.Tensor)
GENERATORS = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)
LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "hetero_hvd"}
"""Packages whose classes and functions keep no generator that a script could mean."""


class OwnGenerators:
    """The generators that can be reached from some objects of a script.

    Attributes, items, closures, arguments kept for later and the globals that functions name are
    followed. They are looked for twice, as some are made by the first use.

    Args:
        roots: Name, as the script knows it, to object.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = roots
        self._found: dict[str, Any] = {}
        self._num_looks = 0

    def states(self) -> dict[str, bytes]:
        """Name of each generator to its state."""
        if self._num_looks < 2:  # noqa: PLR2004 - see the docstring
            self._num_looks += 1
            self._found = dict(_find(self._roots))
        return {name: _state(generator) for name, generator in self._found.items()}

    def complaint(self, before: Mapping[str, bytes]) -> str:
        """What to tell the user if a generator is not as it was; empty if all are.

        Args:
            before: What `states` gave.
        """
        for name, state in self.states().items():
            if before.get(name) != state:
                kind = type(self._found[name])
                return (
                    f"reproducible: random numbers are drawn from {name}, a "
                    f"{kind.__module__.partition('.')[0]} {kind.__name__}: draw from the global "
                    "generators (random, numpy.random, torch), which are seeded for each grain"
                )
        return ""


def _find(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Breadth first, so that what is near is found whatever else there is."""
    queue = deque(roots.items())
    seen = _global_generators()
    while queue and len(seen) < MAX_OBJECTS:
        name, value = queue.popleft()
        if id(value) in seen or isinstance(value, LEAVES):
            continue
        seen.add(id(value))
        if isinstance(value, GENERATORS):
            if not isinstance(value, random.SystemRandom):  # has no state
                yield name, value
            continue
        queue.extend(_parts(name, value))


def _global_generators() -> set[int]:
    legacy = np.random.mtrand._rand  # noqa: SLF001 - what `numpy.random.rand` draws from
    mine = random._inst  # noqa: SLF001 - the same for `random`
    known = [torch.default_generator, legacy, legacy._bit_generator, mine]  # noqa: SLF001
    return {id(generator) for generator in (*known, *accelerator_generators())}


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - anything
    """What an object refers to, with its name."""
    if isinstance(value, Mapping):
        if isinstance(value, dict):  # others may compute what they hold
            for key, item in _first_items(dict.items(value)):
                yield f"{name}[{key!r}]", item
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for index, item in enumerate(_first_items(value)):
            yield f"{name}[{index}]", item
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(name, value)
        return
    elif isinstance(value, partial):
        yield from ((name, value.func), (name, value.args), (name, value.keywords))
    yield from ((f"{name}.{key}", item) for key, item in _attributes(value))


def _first_items(collection: Iterable[Item], most: int | None = MAX_ITEMS) -> list[Item]:
    """Those that are looked at, copied at once: another thread may add to a collection meanwhile.

    None of one that changes whenever it is looked at.

    Args:
        collection: May be gone over several times.
        most: So many; None: all.
    """
    for _ in range(TRIES):
        with suppress(RuntimeError):  # it was changed
            return list(islice(collection, most))
    return []


def _parts_of_function(name: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    if _is_of_library(function):
        return
    code = function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{name}: {variable}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for default in (function.__defaults__, function.__kwdefaults__):
        yield name, default
    codes = [code]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, type(code))]
        for variable in code.co_names:
            if variable in function.__globals__:
                yield f"{name}: {variable}", function.__globals__[variable]


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - anything
    """Those that are stored, without calling a property; and those of the script's classes."""
    bound_to = _stored(value, "__self__")  # of a method, also one of a compiled type
    if bound_to is not None:
        yield "__self__", bound_to
        yield "__func__", _stored(value, "__func__")
    classes = value.__mro__ if isinstance(value, type) else type(value).__mro__
    if not isinstance(value, type):
        yield from _first_items((_stored(value, "__dict__") or {}).items())
    for kind in classes:
        if _is_of_library(kind):
            continue
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            yield slot, _stored(value, slot)
        yield from _first_items(vars(kind).items(), most=None)


def _stored(value: Any, name: str) -> Any:  # noqa: ANN401 - anything
    """An attribute that is there without the help of `__getattr__`, which may raise anything."""
    with suppress(AttributeError):
        return object.__getattribute__(value, name)
    return None


def _is_of_library(value: Any) -> bool:  # noqa: ANN401 - a class or function
    return str(getattr(value, "__module__", "builtins")).partition(".")[0] in LIBRARIES


def _state(generator: Any) -> bytes:  # noqa: ANN401 - one of GENERATORS
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state())
    bits = generator if isinstance(generator, np.random.BitGenerator) else generator.bit_generator
    return pickle.dumps(bits.state)
