"""How a supervisor's samples travel among the output of its worker. Standard library only.

A sign goes in one piece that the system does not mix with what others write into the same pipe. A
sample may be longer: it is compressed, and goes in several.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Iterator

BEGIN = b"\x01hetero-hvd:"
END = b"\x01"
MAX_SIGN_BYTES = 4096
"""PIPE_BUF of Linux: what is not longer is not mixed."""

_PIECE_BYTES = 3900
_MAX_PIECES = 100
MAX_SAMPLE_BYTES = 2**20


def sample_signs(sample: bytes) -> Iterator[bytes]:
    """The signs that carry a sample; none for one that is too long."""
    text = binascii.b2a_base64(zlib.compress(sample), newline=False)
    pieces = [text[at : at + _PIECE_BYTES] for at in range(0, len(text), _PIECE_BYTES)]
    if len(pieces) > _MAX_PIECES or len(sample) > MAX_SAMPLE_BYTES:
        return
    for number, piece in enumerate(pieces, 1):
        yield BEGIN + b"sample %d %d %s" % (number, len(pieces), piece) + END


class SamplePieces:
    """Puts samples together again."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> bytes | None:
        """The sample, with its last piece; None before, and for what is none."""
        try:
            number, count, text = piece.split(b" ")
            if int(number) == 1:
                self._pieces = []
            self._pieces.append(text)
            if not len(self._pieces) == int(number) <= min(int(count), _MAX_PIECES):
                self._pieces = []
            elif int(number) == int(count):
                return _unpacked(b"".join(self._pieces))
        except (ValueError, zlib.error):
            self._pieces = []
        return None


def _unpacked(text: bytes) -> bytes | None:
    """What was packed; None if it would be longer than any sample.

    Raises:
        ValueError: It is no base64.
        zlib.error: It was not compressed.
    """
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(binascii.a2b_base64(text), MAX_SAMPLE_BYTES)
    return None if unpacker.unconsumed_tail else content
