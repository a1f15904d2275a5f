"""Records one after the other in a file that may end in the middle of one, or be damaged anywhere.

Each is a mark, its length and the CRC-32 of these and its bytes, 4 bytes each, little-endian, and
its bytes. The mark is in no text in UTF-8: after damage the next record is found by it. None is
empty: zeros, which a file system leaves where a power cut has kept it from writing, would else read
as records. Files of earlier versions have no marks, and checksums of the bytes alone.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

_HEAD = struct.Struct("<4sII")
_UNMARKED_HEAD = struct.Struct("<II")
_MARK = b"\xffHV\xfe"
"""Read as the length of a record without a mark it is more than any has."""

MAX_RECORD_BYTES = 2**26


def framed(record: bytes) -> bytes:
    """A record of at least one byte as it stands in a file."""
    return _HEAD.pack(_MARK, len(record), _checksum(record)) + record


def _checksum(record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(len(record).to_bytes(4, "little")))


class FramedRecord(NamedTuple):
    """One record of a file.

    Attributes:
        record: Its bytes.
        begin: Where its frame begins.
        end: Where the next one begins.
    """

    record: bytes
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Of it and its frame."""
        return self.end - self.begin


def records_in(content: bytes, *, past_damage: bool = False) -> Iterator[FramedRecord]:
    """The records of a file, up to the first that is not whole.

    Args:
        content: Of the file.
        past_damage: Pass over all that is in no whole record.
    """
    at = 0
    while at < len(content):
        found = _record_at(content, at)
        if found is not None:
            yield found
            at = found.end
        elif past_damage:
            at = _after_damage(content, at)
        else:
            return


def _record_at(content: bytes, at: int) -> FramedRecord | None:
    """The record that begins there; None: none does, or it is not whole."""
    is_marked = content.startswith(_MARK, at)
    begin = at + (_HEAD if is_marked else _UNMARKED_HEAD).size
    if begin > len(content):
        return None
    *_, length, checksum = (_HEAD if is_marked else _UNMARKED_HEAD).unpack_from(content, at)
    end = begin + length
    if not 0 < length <= MAX_RECORD_BYTES or end > len(content):
        return None
    record = content[begin:end]
    is_whole = checksum == (_checksum(record) if is_marked else zlib.crc32(record))
    return FramedRecord(record, at, end) if is_whole else None


def _after_damage(content: bytes, at: int) -> int:
    """Where the next record may begin: at a mark, or where a record without one says it ends."""
    marked = content.find(_MARK, at + 1)
    places = [len(content) if marked < 0 else marked]
    if at + _UNMARKED_HEAD.size <= len(content) and not content.startswith(_MARK, at):
        length, _ = _UNMARKED_HEAD.unpack_from(content, at)
        if 0 < length <= MAX_RECORD_BYTES:
            places.append(at + _UNMARKED_HEAD.size + length)
    return min(places)
