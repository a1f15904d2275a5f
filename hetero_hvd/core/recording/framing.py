"""Records one after the other in a file that may end in the middle of one.

Each is its length and CRC-32, 4 bytes each, little-endian, and its bytes. None is empty: zeros,
which a file system leaves where a power cut has kept it from writing, would else read as records.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

_HEAD = struct.Struct("<II")
MAX_RECORD_BYTES = 2**26


def framed(record: bytes) -> bytes:
    """A record of at least one byte as it stands in a file."""
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


class FramedRecord(NamedTuple):
    """One record of a file.

    Attributes:
        record: Its bytes.
        end: Where the next one begins.
    """

    record: bytes
    end: int


def records_in(content: bytes, *, past_damage: bool = False) -> Iterator[FramedRecord]:
    """The records of a file, up to the first that is not whole.

    Args:
        content: Of the file.
        past_damage: Pass over one that is damaged, as far as its length tells where the next is.
    """
    at = 0
    while at + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, at)
        begin, end = at + _HEAD.size, at + _HEAD.size + length
        if not 0 < length <= MAX_RECORD_BYTES or end > len(content):
            return
        record = content[begin:end]
        if zlib.crc32(record) == checksum:
            yield FramedRecord(record, end)
        elif not past_damage:
            return
        at = end


def whole_bytes(content: bytes) -> int:
    """Where the last whole record of a file ends; what follows was torn."""
    end = 0
    for found in records_in(content, past_damage=True):
        end = found.end
    return end


def damaged_bytes(content: bytes) -> int:
    """How much of a file is in no whole record."""
    whole = records_in(content, past_damage=True)
    return len(content) - sum(_HEAD.size + len(found.record) for found in whole)
