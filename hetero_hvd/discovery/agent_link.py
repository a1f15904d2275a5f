"""What a driver and an agent say to each other: one record a frame, in MessagePack.

Who says it, and that nobody else reads, changes, repeats or reorders it, is TLS's: see
`security.cluster_tls`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hetero_hvd.errors import ChannelError
from hetero_hvd.messages import Message

MAX_FRAME_BYTES = 2**17
"""Both ends send at most 64 KiB at once."""

PATH = "/agent"


class Start(Message, frozen=True):
    """Driver to agent, first: run the supervisor of a worker, or let it tell of the node only.

    Attributes:
        what: A worker, the number of GPUs, or samples of what the node does.
        job: Whose worker it is, in words, for those who find no free slot because of it.
    """

    what: Literal["worker", "gpus", "samples"]
    job: str = ""


class Data(Message, frozen=True):
    """Bytes for the supervisor's input, or from its output; empty = the end of the input."""

    data: bytes


class Exited(Message, frozen=True):
    """Agent to driver, last: the supervisor's exit code."""

    code: int


Frame = Start | Data | Exited
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode(record: Frame) -> bytes:
    """A record as a frame."""
    return msgspec.msgpack.encode(record)


def decode(frame: bytes | str) -> Frame:
    """The record in a frame.

    Raises:
        ChannelError: It is none that we know.
    """
    if isinstance(frame, str):
        raise ChannelError("text instead of a record")
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ChannelError(f"a frame that is not understood: {error}") from error
