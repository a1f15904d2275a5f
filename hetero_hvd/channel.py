"""What the driver and a worker say to each other: one tagged record of `messages` a frame.

Frames are MessagePack; decoding checks each field's type, and nothing is unpickled. Who says it,
and that nobody else reads, changes, repeats or reorders it, is TLS's: see `security.tls`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from hetero_hvd.errors import ChannelError
from hetero_hvd.messages import FromDriver, FromWorker

MAX_FRAME_BYTES = 16 * 2**20
"""Largest frame that either end accepts; a table of 10,000 workers takes 5.5 MB."""

NOT_EXPECTED = 4001
"""Close code of a channel whose worker was started by the job, but is none of it any more."""

DRIVER_NAME = "driver"
"""In the driver's certificate. That of a worker has its name as a Horovod host, which tells one
start of a worker from the next."""

Record = TypeVar("Record")

_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_driver: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)


def encode(message: FromDriver | FromWorker) -> bytes:
    """A record as a frame."""
    return msgspec.msgpack.encode(message)


def from_worker(frame: bytes | str) -> FromWorker:
    """What a worker has sent.

    Raises:
        ChannelError: It is no record that a worker sends.
    """
    return decoded(_from_worker, frame)


def from_driver(frame: bytes | str) -> FromDriver:
    """What the driver has sent.

    Raises:
        ChannelError: It is no record that a driver sends.
    """
    return decoded(_from_driver, frame)


def decoded(decoder: msgspec.msgpack.Decoder[Record], frame: bytes | str) -> Record:
    """The record in a frame of any link of ours.

    Args:
        decoder: Of the records that the link knows.
        frame: As it came.

    Raises:
        ChannelError: It is none of these.
    """
    if isinstance(frame, str):
        raise ChannelError("text instead of a record")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ChannelError(f"a frame that is not understood: {error}") from error
