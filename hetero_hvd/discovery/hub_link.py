"""What an agent, or a command, and the hub say to each other: one record a frame, in MessagePack.

Who says it, and that nobody else reads, changes, repeats or reorders it, is TLS's: see
`security.cluster_tls`. Fields that a later version adds are passed over by an earlier one, so that
an upgrade of one end cuts off none; `agreed` says which versions talk with each other.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from hetero_hvd.channel import decoded
from hetero_hvd.discovery.advert import MAX_TEXT_BYTES
from hetero_hvd.errors import ChannelError

PATH = "/hub"
MAX_SHOWN = 40
PORT = 9391
MAX_FRAME_BYTES = 2**20
MAX_STREAM = 100
"""Characters of the name of a stream."""

PROTOCOL, OLDEST_PROTOCOL = 1, 1
"""What is spoken here, and the oldest that is still understood: that of the version before."""


class Spoken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all frames."""


class Hello(Spoken, frozen=True):
    """First frame to the hub.

    Attributes:
        protocol: See `PROTOCOL`.
        oldest_protocol: See `OLDEST_PROTOCOL`.
        version: Of hetero_hvd.
        node: Whose samples follow; empty: a command follows.
        asked_at_seconds: By the clock of who says it, since boot.
    """

    protocol: int
    oldest_protocol: int
    version: str
    node: str = ""
    asked_at_seconds: float = 0.0


class Welcome(Spoken, frozen=True):
    """Answer to `Hello`.

    Attributes:
        protocol: What is spoken from now on.
        version: Of the hub's hetero_hvd.
        hub: Identity of the hub's store.
        received_at_seconds: When the question came, by the hub's clock.
        replied_at_seconds: When it was answered, by the hub's clock.
        every_seconds: Between two samples, as the hub wants it.
    """

    protocol: int
    version: str
    hub: str
    received_at_seconds: float
    replied_at_seconds: float
    every_seconds: float


class Dropped(msgspec.Struct, frozen=True, array_like=True):
    """Samples that the node's disk had no room for.

    Attributes:
        stream: Of which.
        first: Number of the first one.
        last: Number of the last one.
    """

    stream: str
    first: int
    last: int


class SampleBatch(Spoken, frozen=True):
    """Samples of a node, in the order of their numbers.

    Attributes:
        stream: Identity of one life of an agent.
        first: Number of the first sample.
        times_seconds: Of each, by the node's clock since boot.
        samples: Each a `NodeSampled` in MessagePack.
        offset_seconds: What the hub's clock shows more than the node's.
        uncertainty_seconds: Of that; NaN: the node's wall clock is all that is known.
        dropped: What will never come.
        asked_at_seconds: As in `Hello`.
        leaves: The agent says good-bye.
    """

    stream: str
    first: int
    times_seconds: list[float]
    samples: list[bytes]
    offset_seconds: float
    uncertainty_seconds: float
    dropped: list[Dropped] = []
    asked_at_seconds: float = 0.0
    leaves: bool = False


class Stored(Spoken, frozen=True):
    """The hub has a batch on its disk: what comes before a number is acknowledged.

    Attributes:
        stream: Of the batch.
        next_sequence: Number of the first sample that is not stored.
        received_at_seconds: As in `Welcome`.
        replied_at_seconds: As in `Welcome`.
        every_seconds: As in `Welcome`.
    """

    stream: str
    next_sequence: int
    received_at_seconds: float
    replied_at_seconds: float
    every_seconds: float


class HubRefusal(Spoken, frozen=True):
    """What was said is not acted on.

    Attributes:
        words: Why, for people.
        may_pass: Whether the same may be taken later.
    """

    words: str
    may_pass: bool = False


class HubCommand(Spoken, frozen=True):
    """What a person wants of the hub.

    Attributes:
        name: Of the command, such as `start`.
        arguments: Its arguments, by name.
    """

    name: str
    arguments: dict[str, Any]


class HubAnswer(Spoken, frozen=True):
    """What became of a command.

    Attributes:
        result: Of JSON's kinds, and bytes.
    """

    result: Any


MAX_TOLD_ADVERTS = 256


class ToldAdverts(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the command `adverts`: those that came to the hub after a number.

    Attributes:
        is_listening: Whether the hub takes adverts at all.
        hub: Identity of the hub's store.
        next: Number of the last one, to be asked for those after it.
        adverts: The raw TXT record of each, the newest of its machine, in the order of their
            numbers; as many as go into a frame, with the others in the next answer.
    """

    is_listening: bool
    hub: Annotated[str, msgspec.Meta(max_length=MAX_SHOWN, pattern="^[0-9A-Za-z]*$")] = ""
    next: Annotated[int, msgspec.Meta(ge=0)] = 0
    adverts: Annotated[
        list[Annotated[bytes, msgspec.Meta(max_length=MAX_TEXT_BYTES)]],
        msgspec.Meta(max_length=MAX_TOLD_ADVERTS),
    ] = []


HubFrame = Hello | Welcome | SampleBatch | Stored | HubRefusal | HubCommand | HubAnswer
_decoder: msgspec.msgpack.Decoder[HubFrame] = msgspec.msgpack.Decoder(HubFrame)


def encode(frame: HubFrame) -> bytes:
    """A record as a frame."""
    return msgspec.msgpack.encode(frame)


def decode(frame: bytes | str) -> HubFrame:
    """The record in a frame.

    Raises:
        ChannelError: It is none that we know.
    """
    return decoded(_decoder, frame)


def agreed(hello: Hello, version: str) -> int:
    """What both ends speak.

    Args:
        hello: Of the other end.
        version: Of our hetero_hvd.

    Raises:
        ChannelError: Nothing; in words for the people at both ends.
    """
    common = min(PROTOCOL, hello.protocol)
    if common >= max(OLDEST_PROTOCOL, hello.oldest_protocol):
        return common
    who = f"the agent of {hello.node[:MAX_SHOWN]}" if hello.node else "who asks"
    end = "where that runs" if hello.protocol < OLDEST_PROTOCOL else "the hub"
    raise ChannelError(
        f"{who} speaks protocol {hello.oldest_protocol} to {hello.protocol} (hetero_hvd "
        f"{hello.version[:MAX_SHOWN]}), the hub {OLDEST_PROTOCOL} to {PROTOCOL} (hetero_hvd "
        f"{version}): upgrade {end}"
    )
