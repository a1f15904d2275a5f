"""State dicts as data that every worker and every file can take: apart, and together again.

`torch.load(weights_only=True)` takes tensors and plain containers only. Whatever else a state dict
is likely to hold (NumPy's numbers and arrays, counters, sets, named tuples, enums, ...) travels as
its parts with the name of its kind; anything else is refused, with its place in the state.
"""

from __future__ import annotations

import enum
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from hetero_hvd.errors import UserError

KIND = "hetero_hvd.kind"
"""Key that marks a dict as the parts of something else; `PARTS` has them."""

PARTS = "parts"
PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), torch.dtype, torch.device)
KEYS = (bool, int, float, str, bytes, type(None))
FACTORIES: dict[str, Callable[[], Any] | None] = {
    "": None,
    **{kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)},
}
"""What a `defaultdict` may make of a missing key."""

TensorMap = Callable[[torch.Tensor], Any]
"""What becomes of each tensor."""


class _Refused(UserError):  # noqa: N818 - becomes a whole sentence before anybody sees it
    """Part of a state is nothing that could be loaded again."""


class _Kind(NamedTuple):
    """How one kind of object travels.

    Attributes:
        take_apart: Gives its parts, which may be of any kind themselves.
        put_together: The inverse.
    """

    take_apart: Callable[[Any], Any]
    put_together: Callable[[Any], Any]


def _array_parts(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.dtype.hasobject or array.dtype.names:
        raise _Refused(f"an array of {array.dtype}")
    data = torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())
    return [array.dtype.str, list(array.shape), data]


def _array(parts: list[Any]) -> np.ndarray[Any, Any]:
    dtype, shape, data = parts
    return np.frombuffer(data.numpy().tobytes(), np.dtype(dtype)).reshape(shape).copy()


def _scalar(parts: list[Any]) -> Any:  # noqa: ANN401 - a NumPy scalar of any type
    return _array(parts)[()]


def _default_parts(found: defaultdict[Any, Any]) -> list[Any]:
    for name, factory in FACTORIES.items():
        if found.default_factory is factory:
            return [name, dict(found)]
    raise _Refused("a defaultdict with a function of its own")


def _name_of(cls: type) -> list[str]:
    name = [cls.__module__, cls.__qualname__]
    if _named(name) is not cls:
        raise _Refused(f"{cls.__qualname__}, which is not at the top of a module")
    return name


def _named(name: list[str]) -> Any:  # noqa: ANN401 - whatever has this name
    """A class that this process has imported already: nothing is imported for a state."""
    found: Any = sys.modules.get(name[0])
    for word in name[1].split("."):
        found = getattr(found, word, None)
    return found


def _record(parts: list[Any]) -> Any:  # noqa: ANN401 - a named tuple
    cls = _named(parts[0])
    if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
        raise UserError(f"{'.'.join(parts[0])} is no named tuple of this script")
    return tuple.__new__(cls, parts[1])


def _member(parts: list[Any]) -> enum.Enum:
    cls = _named(parts[0])
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise UserError(f"{'.'.join(parts[0])} is no enum of this script")
    return cls[parts[1]]


KINDS = {
    "array": _Kind(_array_parts, _array),
    "scalar": _Kind(lambda value: _array_parts(np.asarray(value)), _scalar),
    "NumPy type": _Kind(lambda dtype: dtype.str, np.dtype),
    "counter": _Kind(dict, Counter),
    "default": _Kind(_default_parts, lambda parts: defaultdict(FACTORIES[parts[0]], parts[1])),
    "pairs": _Kind(lambda found: [list(pair) for pair in found.items()], dict),
    "ordered pairs": _Kind(lambda found: [list(pair) for pair in found.items()], OrderedDict),
    "set": _Kind(lambda value: sorted(value, key=repr), set),
    "frozen set": _Kind(lambda value: sorted(value, key=repr), frozenset),
    "deque": _Kind(lambda q: [list(q), q.maxlen], lambda parts: deque(parts[0], parts[1])),
    "range": _Kind(lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
    "slice": _Kind(lambda s: [s.start, s.stop, s.step], lambda parts: slice(*parts)),
    "record": _Kind(lambda value: [_name_of(type(value)), list(value)], _record),
    "enum": _Kind(lambda value: [_name_of(type(value)), value.name], _member),
}
EXACT = {
    np.ndarray: "array",
    Counter: "counter",
    defaultdict: "default",
    set: "set",
    frozenset: "frozen set",
    deque: "deque",
    range: "range",
    slice: "slice",
}
BASES: dict[type, str] = {
    enum.Enum: "enum",
    np.generic: "scalar",
    np.dtype: "NumPy type",
    tuple: "record",
}
"""Classes whose subclasses travel alike; a tuple must have named fields."""


def take_apart(value: Any, place: str, tensors: TensorMap) -> Any:  # noqa: ANN401
    """The value as tensors and plain containers.

    Args:
        value: A state, or part of one.
        place: Where it is, for the error.
        tensors: Applied to each tensor, without gradient.

    Raises:
        UserError: Part of it could not be loaded back; says which.
    """
    try:
        if isinstance(value, torch.Tensor):
            return tensors(_strided(value))
        if type(value) in PLAIN:
            return value
        kind = _kind_of(value)
        parts = value if kind is None else KINDS[kind].take_apart(value)
    except _Refused as why:
        raise UserError(
            f"{place}: {why}: cannot be kept or copied to another worker; let the state dict give "
            "numbers, strings, tensors and containers of them instead"
        ) from why
    if kind is not None:
        return {KIND: kind, PARTS: take_apart(parts, place, tensors)}
    if isinstance(parts, dict):
        items = ((key, take_apart(item, _at(place, key), tensors)) for key, item in parts.items())
        return _like(parts, items, lambda extra: take_apart(extra, place, tensors))
    if isinstance(parts, torch.Size):
        return parts
    return type(parts)(
        [take_apart(item, f"{place}[{index}]", tensors) for index, item in enumerate(parts)]
    )


def put_together(value: Any) -> Any:  # noqa: ANN401 - any state
    """What `take_apart` was given, equal and of the same types.

    Raises:
        UserError: It names a class that this script does not have.
    """
    if isinstance(value, dict):
        if KIND in value:
            return KINDS[value[KIND]].put_together(put_together(value[PARTS]))
        items = ((key, put_together(item)) for key, item in value.items())
        return _like(value, items, put_together)
    if type(value) in (list, tuple):
        return type(value)([put_together(item) for item in value])
    return value


def leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any state
    """Tensors and plain data of what `take_apart` gave, each with its place.

    The order does not depend on that of the keys.
    """
    if isinstance(value, Mapping):
        if KIND in value:
            yield place, value[KIND]
            yield from leaves(value[PARTS], place)
            return
        for key in sorted(value, key=repr):
            yield from leaves(value[key], _at(place, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{place}[{index}]")
    else:
        yield place, value


def _at(place: str, key: object) -> str:
    name = str(key) if isinstance(key, str) else f"[{key!r}]"
    between = "" if place.endswith(" ") or not isinstance(key, str) else "."
    return f"{place}{between}{name}"


def _like(
    found: dict[Any, Any], items: Iterator[tuple[Any, Any]], apply: Callable[[Any], Any]
) -> dict[Any, Any]:
    """A dict of the same type; an ordered one keeps its attributes, such as a module's versions."""
    made = type(found)(items)
    if isinstance(found, OrderedDict) and vars(found):
        vars(made).update({name: apply(extra) for name, extra in vars(found).items()})
    return made


def _kind_of(value: Any) -> str | None:  # noqa: ANN401 - anything
    """Name of its kind; None for a plain container."""
    found = type(value)
    if found in EXACT:
        return EXACT[found]
    if found in (dict, OrderedDict):
        if any(isinstance(key, torch.Tensor) for key in value):
            raise _Refused("a dict with tensors as keys")
        if all(type(key) in KEYS for key in value) and KIND not in value:
            return None
        return "pairs" if found is dict else "ordered pairs"
    if found in (list, tuple, torch.Size):
        return None
    for base, kind in BASES.items():
        if isinstance(value, base) and (kind != "record" or hasattr(found, "_fields")):
            return kind
    raise _Refused(f"{found.__module__}.{found.__qualname__}")


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise _Refused(f"{type(tensor).__module__}.{type(tensor).__qualname__}")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        what = "on the meta device" if tensor.is_meta else f"of {tensor.layout}, {tensor.dtype}"
        raise _Refused(f"a tensor {what}")
    return tensor.detach()
