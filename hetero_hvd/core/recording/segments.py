"""A piece of a stream as few bytes: numbers in columns, beside their neighbours in time, and zlib.

A sample is a MessagePack record of any kind. Its doubles go into columns, by their places in it;
all else is its skeleton, which is the same in most samples and stands there once.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.recording.columns import (
    CodedColumn,
    Doubles,
    Integers,
    code_doubles,
    code_integers,
    doubles_of,
    integers_of,
)
from hetero_hvd.errors import MalformedDataError

Flags = NDArray[np.bool_]
LEVEL = 9
FORMAT = 2
NIL = msgspec.msgpack.Ext(1, b"")
"""In a skeleton: what is nil in the sample, as nil itself stands for a double there."""

MAX_PIECE_BYTES = 2**28
"""Of what is decompressed at once."""

_FORMAT_1 = b"x"
"""How zlib begins: all columns were compressed together, and none could be read alone."""

_SEQUENCES, _TIMES, _CHOICES = "sequences", "times", "choices"
"""Columns beside those of the numbers, whose names begin with a slash."""


class Recorded(NamedTuple):
    """One sample of a stream.

    Attributes:
        sequence: Its number in the stream.
        at_microseconds: By the hub's clock, since 1970.
        sample: As it was sent.
    """

    sequence: int
    at_microseconds: int
    sample: bytes


class _PieceColumns(msgspec.Struct, frozen=True, array_like=True):
    """What is in a piece.

    Attributes:
        version: Of this form.
        count: Samples.
        sequences: Their numbers.
        times: In microseconds.
        skeletons: All different ones.
        choices: Which of them each sample has.
        numbers: Place in the sample to its column, of the samples that have it.
    """

    version: int
    count: int
    sequences: CodedColumn
    times: CodedColumn
    skeletons: list[bytes]
    choices: CodedColumn
    numbers: dict[str, CodedColumn]

    @property
    def columns(self) -> dict[str, CodedColumn]:
        """All of them, by name."""
        own = {_SEQUENCES: self.sequences, _TIMES: self.times, _CHOICES: self.choices}
        return own | self.numbers


class _PackedPiece(msgspec.Struct, frozen=True, array_like=True):
    """How it is stored: each column can be read without the others.

    Attributes:
        version: Of this form.
        head: `_PieceColumns` without the bytes of its columns, compressed.
        bodies: Name of a column to its bytes, compressed.
    """

    version: int
    head: bytes
    bodies: list[bytes]


def encode_piece(frames: Sequence[Recorded]) -> bytes:
    """Code samples of one stream, in its order."""
    skeletons: dict[bytes, int] = {}
    choices: list[int] = []
    numbers: dict[str, list[float]] = {}
    for frame in frames:
        bare = _taken_apart(msgspec.msgpack.decode(frame.sample), "", numbers)
        skeleton = msgspec.msgpack.encode(bare)
        choices.append(skeletons.setdefault(skeleton, len(skeletons)))
    return _packed(
        _PieceColumns(
            FORMAT,
            len(frames),
            code_integers([frame.sequence for frame in frames]),
            code_integers([frame.at_microseconds for frame in frames]),
            list(skeletons),
            code_integers(choices),
            {place: code_doubles(values) for place, values in numbers.items()},
        )
    )


def _packed(piece: _PieceColumns) -> bytes:
    bare = {
        name: msgspec.structs.replace(column, body=b"") for name, column in piece.columns.items()
    }
    head = msgspec.structs.replace(
        piece,
        sequences=bare.pop(_SEQUENCES),
        times=bare.pop(_TIMES),
        choices=bare.pop(_CHOICES),
        numbers=bare,
    )
    return msgspec.msgpack.encode(
        _PackedPiece(
            FORMAT,
            _deflated(msgspec.msgpack.encode(head)),
            [_deflated(column.body) for column in piece.columns.values()],
        )
    )


def _deflated(content: bytes) -> bytes:
    return zlib.compress(content, LEVEL) if content else b""


def _inflated(content: bytes) -> bytes:
    """With a check whether it is what was compressed."""
    return zlib.decompressobj().decompress(content, MAX_PIECE_BYTES) if content else b""


class _PieceReader:
    """Reads the columns of a piece that are asked for.

    Raises:
        MalformedDataError: It is of a later version.
    """

    def __init__(self, content: bytes) -> None:
        self._bodies: dict[str, bytes] | None = None
        if content.startswith(_FORMAT_1):
            piece = msgspec.msgpack.decode(_inflated(content), type=_PieceColumns)
        else:
            packed = msgspec.msgpack.decode(content, type=_PackedPiece)
            if packed.version != FORMAT:
                words = f"a piece of version {packed.version}, known is {FORMAT}"
                raise MalformedDataError(words)
            piece = msgspec.msgpack.decode(_inflated(packed.head), type=_PieceColumns)
            self._bodies = dict(zip(piece.columns, packed.bodies, strict=True))
        self._columns = piece.columns
        self.count = piece.count
        self.skeletons = [msgspec.msgpack.decode(skeleton) for skeleton in piece.skeletons]
        self.places = list(piece.numbers)

    def integers(self, name: str) -> Integers:
        """Of all samples."""
        return integers_of(self._column(name), self.count)

    def doubles(self, place: str, count: int) -> Doubles:
        """Of those samples that have some."""
        return doubles_of(self._column(place), count)

    def _column(self, name: str) -> CodedColumn:
        column = self._columns[name]
        if self._bodies is None:
            return column
        return msgspec.structs.replace(column, body=_inflated(self._bodies[name]))


def decode_piece(content: bytes, lost: set[str] | None = None) -> Iterator[Recorded]:
    """The samples of a piece, equal bit for bit to what was coded.

    Args:
        content: The piece.
        lost: Gets the places of numbers whose columns are damaged; they are left out of all
            samples, as if they had not been told. None: such a piece is none.

    Raises:
        MalformedDataError: It is none, or of a later version.
    """
    try:
        piece = _PieceReader(content)
        choices = piece.integers(_CHOICES).tolist()
        counts = _places_of(piece.skeletons, choices)
        columns: dict[str, Iterator[float]] = {}
        for place in piece.places:
            try:
                columns[place] = iter(piece.doubles(place, counts.get(place, 0)).tolist())
            except _DAMAGE:
                if lost is None:
                    raise
                lost.add(place)
        skeletons = (
            [_without(bare, "", lost) for bare in piece.skeletons] if lost else piece.skeletons
        )
        sequences, times = piece.integers(_SEQUENCES).tolist(), piece.integers(_TIMES).tolist()
        for sequence, at, choice in zip(sequences, times, choices, strict=True):
            sample = msgspec.msgpack.encode(_put_together(skeletons[choice], "", columns))
            yield Recorded(sequence, at, sample)
    except _DAMAGE as error:
        raise MalformedDataError(f"a piece of a recording is damaged: {error}") from error


class NumbersOverTime(NamedTuple):
    """Some numbers of the samples of a stream.

    Attributes:
        sequences: Number of each of the n samples, (n,).
        times: Of each, in microseconds by the hub's clock, (n,).
        values: Name to a column, (n,); NaN: a sample has none of that name.
    """

    sequences: Integers
    times: Integers
    values: dict[str, Doubles]


Places = Callable[[Any], Mapping[str, str]]
"""Told a sample as a record whose doubles are None: names to the places of doubles in it."""


def decode_numbers(content: bytes, places: Places) -> NumbersOverTime:
    """Some columns of a piece, without putting its samples together: a hundred times as fast.

    Args:
        content: The piece.
        places: What is wanted of a sample. What it gives for one must not depend on others.

    Raises:
        MalformedDataError: It is none, or of a later version.
    """
    try:
        piece = _PieceReader(content)
        given = [dict(places(bare)) for bare in piece.skeletons]
        choices = piece.integers(_CHOICES)
        columns = {
            place: _spread(piece, place, np.array([place in e.values() for e in given])[choices])
            for place in sorted({place for each in given for place in each.values()})
        }
        values = {}
        for name in sorted({name for each in given for name in each}):
            values[name] = np.full(piece.count, np.nan)
            for place in {each[name] for each in given if name in each}:
                mask = np.array([each.get(name) == place for each in given])[choices]
                values[name][mask] = columns[place][mask]
        return NumbersOverTime(piece.integers(_SEQUENCES), piece.integers(_TIMES), values)
    except _DAMAGE as error:
        raise MalformedDataError(f"a piece of a recording is damaged: {error}") from error


_DAMAGE = (zlib.error, msgspec.DecodeError, ValueError, IndexError, KeyError)


def _spread(piece: _PieceReader, place: str, has_it: Flags) -> Doubles:
    """A column of those samples that have it as one of all samples."""
    found = np.full(piece.count, np.nan)
    found[has_it] = piece.doubles(place, int(has_it.sum()))
    return found


def _taken_apart(value: Any, place: str, numbers: dict[str, list[float]]) -> Any:  # noqa: ANN401 - any record
    """A record without its doubles, which go to the columns of their places."""
    if isinstance(value, float):
        column = numbers.get(place)
        if column is None:
            column = numbers[place] = []
        column.append(value)
        return None
    if value is None:
        return NIL
    if isinstance(value, dict):
        return {key: _taken_apart(v, f"{place}/{key}", numbers) for key, v in value.items()}
    if isinstance(value, list):
        return [_taken_apart(v, f"{place}/{n}", numbers) for n, v in enumerate(value)]
    return value


def _put_together(value: Any, place: str, columns: dict[str, Iterator[float]]) -> Any:  # noqa: ANN401
    if value is None:
        return next(columns[place])
    if value == NIL:
        return None
    if isinstance(value, dict):
        return {key: _put_together(v, f"{place}/{key}", columns) for key, v in value.items()}
    if isinstance(value, list):
        return [_put_together(v, f"{place}/{n}", columns) for n, v in enumerate(value)]
    return value


def _without(value: Any, place: str, lost: set[str]) -> Any:  # noqa: ANN401
    """A sample without its doubles, and without some of their places."""
    if isinstance(value, dict):
        inner = {key: (f"{place}/{key}", v) for key, v in value.items()}
        return {
            key: _without(v, at, lost)
            for key, (at, v) in inner.items()
            if v is not None or at not in lost
        }
    if isinstance(value, list):
        return [_without(v, f"{place}/{n}", lost) for n, v in enumerate(value)]
    return math.nan if value is None and place in lost else value


def _places(value: Any, place: str) -> Iterable[str]:  # noqa: ANN401
    if value is None:
        yield place
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, f"{place}/{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _places(inner, f"{place}/{number}")


def _places_of(bare: Sequence[Any], choices: Sequence[int]) -> dict[str, int]:
    """How many samples have a double at each place."""
    counts: dict[str, int] = {}
    for index, chosen in Counter(choices).items():
        for place in _places(bare[index], ""):
            counts[place] = counts.get(place, 0) + chosen
    return counts
