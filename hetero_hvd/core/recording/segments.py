"""A piece of a stream as few bytes: numbers in columns, beside their neighbours in time, and zlib.

A sample is a MessagePack record of any kind. Its doubles go into columns, by their places in it;
all else is its skeleton, which is the same in most samples and stands there once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from hetero_hvd.core.recording.columns import (
    CodedColumn,
    code_doubles,
    code_integers,
    doubles_of,
    integers_of,
)
from hetero_hvd.errors import MalformedDataError

LEVEL = 9
FORMAT = 1
MAX_PIECE_BYTES = 2**28
"""Of a piece once it is decompressed."""


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
    """What is compressed.

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


def encode_piece(frames: Sequence[Recorded]) -> bytes:
    """Code samples of one stream, in its order."""
    skeletons: dict[bytes, int] = {}
    choices: list[int] = []
    numbers: dict[str, list[float]] = {}
    for frame in frames:
        bare = _taken_apart(msgspec.msgpack.decode(frame.sample), "", numbers)
        skeleton = msgspec.msgpack.encode(bare)
        choices.append(skeletons.setdefault(skeleton, len(skeletons)))
    piece = _PieceColumns(
        FORMAT,
        len(frames),
        code_integers([frame.sequence for frame in frames]),
        code_integers([frame.at_microseconds for frame in frames]),
        list(skeletons),
        code_integers(choices),
        {place: code_doubles(values) for place, values in numbers.items()},
    )
    return zlib.compress(msgspec.msgpack.encode(piece), LEVEL)


def decode_piece(content: bytes) -> Iterator[Recorded]:
    """The samples of a piece, equal bit for bit to what was coded.

    Raises:
        MalformedDataError: It is none, or of a later version.
    """
    try:
        reader = zlib.decompressobj()
        raw = reader.decompress(content, MAX_PIECE_BYTES)
        piece = msgspec.msgpack.decode(raw, type=_PieceColumns)
        if piece.version != FORMAT:
            raise MalformedDataError(f"a piece of version {piece.version}, known is {FORMAT}")
        bare = [msgspec.msgpack.decode(skeleton) for skeleton in piece.skeletons]
        choices = integers_of(piece.choices, piece.count).tolist()
        counts = _places_of(bare, choices)
        columns = {
            place: iter(doubles_of(column, counts.get(place, 0)).tolist())
            for place, column in piece.numbers.items()
        }
        sequences = integers_of(piece.sequences, piece.count).tolist()
        times = integers_of(piece.times, piece.count).tolist()
        for sequence, at, choice in zip(sequences, times, choices, strict=True):
            sample = msgspec.msgpack.encode(_put_together(bare[choice], "", columns))
            yield Recorded(sequence, at, sample)
    except (zlib.error, msgspec.DecodeError, ValueError, IndexError, KeyError) as error:
        raise MalformedDataError(f"a piece of a recording is damaged: {error}") from error


def _taken_apart(value: Any, place: str, numbers: dict[str, list[float]]) -> Any:  # noqa: ANN401 - any record
    """A record without its doubles, which go to the columns of their places."""
    if isinstance(value, float):
        column = numbers.get(place)
        if column is None:
            column = numbers[place] = []
        column.append(value)
        return None
    if isinstance(value, dict):
        return {key: _taken_apart(v, f"{place}/{key}", numbers) for key, v in value.items()}
    if isinstance(value, list):
        return [_taken_apart(v, f"{place}/{n}", numbers) for n, v in enumerate(value)]
    return value


def _put_together(value: Any, place: str, columns: dict[str, Iterator[float]]) -> Any:  # noqa: ANN401
    if value is None:
        return next(columns[place])
    if isinstance(value, dict):
        return {key: _put_together(v, f"{place}/{key}", columns) for key, v in value.items()}
    if isinstance(value, list):
        return [_put_together(v, f"{place}/{n}", columns) for n, v in enumerate(value)]
    return value


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
    for index, skeleton in enumerate(bare):
        chosen = choices.count(index)
        for place in _places(skeleton, ""):
            counts[place] = counts.get(place, 0) + chosen
    return counts
