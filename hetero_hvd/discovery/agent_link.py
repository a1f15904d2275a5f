"""What a driver and an agent say to each other: one record a frame, in MessagePack.

Who says it, and that nobody else reads, changes, repeats or reorders it, is TLS's: see
`security.cluster_tls`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hetero_hvd.channel import decoded
from hetero_hvd.messages import Message
from hetero_hvd.security.web_socket import Subprotocol
from hetero_hvd.version import __version__

MAX_FRAME_BYTES = 2**17
"""Both ends send at most 64 KiB at once."""

PATH = "/agent"

PROTOCOL = 1
"""Grows when what is said here changes within a version of hetero_hvd."""

REMEDY = "install the same version of hetero_hvd on both"
OFFER = "Sec-WebSocket-Protocol"
MAX_OFFER_CHARACTERS = 80


def subprotocol() -> Subprotocol:
    """What both ends must name, as WebSocket has it for that.

    The version too: an agent starts the supervisors and workers of its own, with which the driver
    talks then.
    """
    return Subprotocol(f"hetero-hvd.{__version__}.{PROTOCOL}")


def in_conflict(offered: str) -> str:
    """Why a driver is refused, for the people at both ends; empty: it is of our version.

    Args:
        offered: What the driver has named.
    """
    if offered == subprotocol():
        return ""
    shown = "".join(c if c.isprintable() else "?" for c in offered[:MAX_OFFER_CHARACTERS])
    theirs = shown or "of an older hetero_hvd"
    return f"the driver is {theirs}, the agent {subprotocol()}: {REMEDY}"


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
    return decoded(_decoder, frame)
