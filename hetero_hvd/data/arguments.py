"""What a script gives to a data set: refused at once, in one line, if it is something else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Any, TypeVar

from hetero_hvd.core.redaction import redacted
from hetero_hvd.errors import UserError

Known = TypeVar("Known")
SHOWN_LETTERS = 80
PLAIN = (str, bytes, Number, list, tuple, dict, set, type(None))
"""What is shown as it is written; of all else the kind."""


def refused(where: str, name: str, value: object, wanted: str) -> UserError:
    """An argument that is something else.

    Args:
        where: Begins the line.
        name: Of the argument.
        value: What was given.
        wanted: What it must be.
    """
    return UserError(f"{where}: {name}: {shown(value)}: must be {wanted}")


def shown(value: object) -> str:
    """A value in one short line, without what looks like a secret in it."""
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, PLAIN):
        return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
    try:
        text = redacted(repr(value))
    except ValueError:  # a number of thousands of digits
        return f"a long {kind}"
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}…"


def whole_number(
    value: Any,  # noqa: ANN401 - whatever the script gives
    where: str,
    name: str,
    *,
    least: int,
    most: int = sys.maxsize,
) -> int:
    """A whole number of 64 bits; one of NumPy's is as good as Python's.

    Raises:
        UserError: It is something else, or out of bounds.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        bounds = f">= {least}" if most == sys.maxsize else f"from {least} to {most}"
        raise refused(where, name, value, f"a whole number {bounds}")
    return int(value)


def number(
    value: Any,  # noqa: ANN401 - as above
    where: str,
    name: str,
    *,
    least: float,
    most: float,
) -> float:
    """A number, which is no NaN.

    Raises:
        UserError: It is something else, or out of bounds.
    """
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    if not is_real or not least <= value <= most:
        raise refused(where, name, value, f"a number from {least:g} to {most:g}")
    return float(value)


def switch(value: object, where: str, name: str) -> bool:
    """True or False.

    Raises:
        UserError: It is neither.
    """
    if not isinstance(value, bool):
        raise refused(where, name, value, "True or False")
    return value


def text(value: object, where: str, name: str, wanted: str) -> str:
    """A text that is not empty.

    Raises:
        UserError: It is something else.
    """
    if not isinstance(value, str) or not value.strip():
        raise refused(where, name, value, wanted)
    return value


def texts(
    value: Any,  # noqa: ANN401 - as above
    where: str,
    name: str,
    wanted: str,
) -> tuple[str, ...]:
    """Several texts, of which none is empty and none comes twice; a single one is no list of them.

    Raises:
        UserError: It is something else.
    """
    is_list = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    found = list(value) if is_list else [None]
    words = tuple(each for each in found if isinstance(each, str) and each)
    if len(set(words)) < len(found):
        raise refused(where, name, value, wanted)
    return words


def one_of(value: object, what: str, known: Mapping[str, Known]) -> Known:
    """What a name stands for.

    Raises:
        UserError: It is none of them.
    """
    if not isinstance(value, str) or value not in known:
        raise UserError(f"{what} {shown(value)}: must be one of {', '.join(known)}")
    return known[value]


def function(value: object, where: str, name: str, wanted: str) -> None:
    """See that it can be called, or is None.

    Raises:
        UserError: It is something else.
    """
    if value is not None and not callable(value):
        raise refused(where, name, value, f"{wanted}, or None")


def folder(value: object, where: str, name: str) -> Path | None:
    """A path, or None.

    Raises:
        UserError: It is something else.
    """
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise refused(where, name, value, "the path of a folder, or None")
    return Path(path)


def options(value: object, where: str, name: str) -> dict[str, Any]:
    """Names and their values, or None, which is none of them.

    Raises:
        UserError: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        kind = type(value).__name__  # its values may be secret
        raise UserError(f"{where}: {name}: a {kind}: must be a dict of names to values, or None")
    return dict(value)
