"""Columns of numbers as few bytes: differences of integers, cut to the bytes that they need.

What comes out equals what went in bit for bit. A column whose values have few decimals, as most
sensors tell them, is one of integers; others keep the bits of their doubles. The bytes of all first
places come first, then those of all second places, and so on: then a compressor finds what repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

MAX_EXACT = 2.0**52
"""Doubles hold all integers up to here, and some more."""

MAX_DECIMALS = 6
_BITS, _INTEGERS = 0, 1

Integers = NDArray[np.int64]
Doubles = NDArray[np.float64]


class CodedColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column of numbers.

    Attributes:
        kind: 0: bits of doubles; 1: integers.
        decimals: Of integers that stand for doubles: they are divided by ten to this.
        num_differences: 0: the values; 1: what each is more than the one before it.
        width: Bytes of each.
        first: Value of the first integer.
        body: The bytes, those of one place together.
        holes: Indexes of values that are NaN, coded likewise; they are not in `body`.
    """

    kind: int
    decimals: int
    num_differences: int
    width: int
    first: int
    body: bytes
    holes: bytes = b""


def code_integers(values: Sequence[int]) -> CodedColumn:
    """Code a column of integers of at most 63 bits."""
    return _coded_integers(np.array(values, dtype=np.int64), decimals=0)


def integers_of(column: CodedColumn, count: int) -> Integers:
    """The integers of a column."""
    return _integers(column, count)


def code_doubles(values: Sequence[float]) -> CodedColumn:
    """Code a column of doubles."""
    doubles = np.array(values, dtype=np.float64)
    bits = doubles.view(np.int64)
    is_hole = bits == _NAN_BITS
    told = doubles[~is_hole]
    holes = np.packbits(is_hole).tobytes() if is_hole.any() else b""
    decimals, integers = _as_integers(told)
    if integers is not None:
        coded = _coded_integers(integers, decimals=decimals)
        return msgspec.structs.replace(coded, holes=holes)
    width = 8
    return CodedColumn(_BITS, 0, 0, width, 0, _planes(told.view(np.uint64), width), holes)


def doubles_of(column: CodedColumn, count: int) -> Doubles:
    """The doubles of a column, with their bits."""
    is_hole = np.zeros(count, dtype=bool)
    if column.holes:
        packed = np.frombuffer(column.holes, dtype=np.uint8)
        is_hole = np.unpackbits(packed, count=count).astype(bool)
    num_told = count - int(is_hole.sum())
    if column.kind == _BITS:
        told = _from_planes(column.body, column.width, num_told).view(np.float64)
    else:
        integers = _integers(column, num_told)
        told = integers.astype(np.float64) / 10.0**column.decimals
    found = np.full(count, np.nan)
    found.view(np.int64)[is_hole] = _NAN_BITS
    found[~is_hole] = told
    return found


_NAN_BITS = int(np.array(float("nan")).view(np.int64))


class _Decimal(NamedTuple):
    decimals: int
    integers: Integers | None


def _as_integers(doubles: Doubles) -> _Decimal:
    """How many decimals all of them have, and what they are without a point; None: too many."""
    if not np.isfinite(doubles).all():
        return _Decimal(0, None)
    for decimals in range(MAX_DECIMALS + 1):
        scale = 10.0**decimals
        scaled = np.rint(doubles * scale)
        if (np.abs(scaled) > MAX_EXACT).any():
            break
        integers = scaled.astype(np.int64)
        back = (integers.astype(np.float64) / scale).view(np.int64)
        if (back == doubles.view(np.int64)).all():
            return _Decimal(decimals, integers)
    return _Decimal(0, None)


def _coded_integers(integers: Integers, *, decimals: int) -> CodedColumn:
    if not len(integers):
        return CodedColumn(_INTEGERS, decimals, 0, 0, 0, b"")
    first = int(integers[0])
    steps = np.diff(integers)
    plain = integers[1:] - integers[0]
    is_calm = _size(steps) <= _size(plain)
    zigzag = _zigzag(steps if is_calm else plain)
    largest = int(zigzag.max(initial=0))
    width = (largest.bit_length() + 7) // 8
    return CodedColumn(_INTEGERS, decimals, int(is_calm), width, first, _planes(zigzag, width))


def _integers(column: CodedColumn, count: int) -> Integers:
    if not count:
        return np.zeros(0, dtype=np.int64)
    zigzag = _from_planes(column.body, column.width, count - 1)
    steps = (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)
    found = np.empty(count, dtype=np.int64)
    found[0] = column.first
    found[1:] = column.first + (np.cumsum(steps) if column.num_differences else steps)
    return found


def _size(values: Integers) -> float:
    """About how many bits they need."""
    return float(np.log2(1.0 + np.abs(values.astype(np.float64))).sum())


def _zigzag(values: Integers) -> NDArray[np.uint64]:
    """Small numbers of either sign as small ones without."""
    return ((values << np.int64(1)) ^ (values >> np.int64(63))).view(np.uint64)


def _planes(values: NDArray[np.uint64], width: int) -> bytes:
    """The lowest bytes of all, then the next ones."""
    table = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), 8)
    return table[:, :width].T.tobytes()


def _from_planes(body: bytes, width: int, count: int) -> NDArray[np.uint64]:
    table = np.zeros((count, 8), dtype=np.uint8)
    table[:, :width] = np.frombuffer(body, dtype=np.uint8).reshape(width, count).T
    return table.reshape(count * 8).view(np.uint64)
