"""The frames of a recording: every sample of a session, as it was sent, in one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from hetero_hvd.core.recording.framing import framed, records_in
from hetero_hvd.core.recording.segments import Recorded, decode_piece, encode_piece
from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.errors import JobError, MalformedDataError
from hetero_hvd.messages import DeviceSample, ForeignSampled, NodeSampled
from hetero_hvd.run.records.run_files import regular

FILE = "frames.pieces"
PIECE_FRAMES = 3600
_decoder: msgspec.msgpack.Decoder[NodeSampled | ForeignSampled] = msgspec.msgpack.Decoder(
    NodeSampled | ForeignSampled
)


class RecordedFrame(NamedTuple):
    """One sample of one node.

    Attributes:
        node: Its name, as its agent has it.
        stream: Of which life of the agent.
        recorded: Number, time and sample.
    """

    node: str
    stream: str
    recorded: Recorded

    @property
    def at_unix_seconds(self) -> float:
        """By the hub's clock."""
        return self.recorded.at_microseconds / MICROSECONDS

    @property
    def sample(self) -> NodeSampled | ForeignSampled:
        """What was sampled, or told by another program; without what a later version adds."""
        return read_told(self.recorded.sample)


def read_told(content: bytes) -> NodeSampled | ForeignSampled:
    """A sample as it was sent; what a later version has added to it is left out.

    Raises:
        MalformedDataError: It is none.
    """
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        told: Any = msgspec.msgpack.decode(content)
        if isinstance(told, dict) and told.get("type") == NodeSampled.__name__:
            told = _known(told, NodeSampled)
            told["devices"] = [_known(gpu, DeviceSample) for gpu in told.get("devices", ())]
        return msgspec.convert(told, NodeSampled | ForeignSampled)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        AttributeError,
        TypeError,
    ) as error:
        raise MalformedDataError(f"is no sample: {error}") from error


def _known(told: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    names = {"type", *kind.__struct_fields__}
    return {name: value for name, value in told.items() if name in names}


class _FramePiece(msgspec.Struct, frozen=True, array_like=True):
    """One record of the file."""

    node: str
    stream: str
    piece: bytes


def write_frames(file: BinaryIO, frames: Iterable[RecordedFrame]) -> None:
    """Write frames that come stream by stream."""
    for (node, stream), found in groupby(frames, key=lambda frame: frame[:2]):
        while part := [frame.recorded for frame in islice(found, PIECE_FRAMES)]:
            piece = _FramePiece(node, stream, encode_piece(part))
            file.write(framed(msgspec.msgpack.encode(piece)))


def is_recording(folder: Path) -> bool:
    """Whether a run's folder holds a recording of machines."""
    return (folder / FILE).is_file()


def read_frames(folder: Path) -> Iterator[RecordedFrame]:
    """The frames of a recording, node by node, each node's in the order of time.

    Raises:
        JobError: There are none, or they are damaged.
    """
    path = folder / FILE
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read()
        end = 0
        for found in records_in(content):
            end = found.end
            piece = msgspec.msgpack.decode(found.record, type=_FramePiece)
            for recorded in decode_piece(piece.piece):
                yield RecordedFrame(piece.node, piece.stream, recorded)
    except OSError as error:
        raise JobError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, MalformedDataError) as error:
        raise JobError(f"{path}: {error}") from error
    if end < len(content):
        raise JobError(
            f"{path}: damaged from byte {end} of {len(content)} on; hetero-hvd record cut writes "
            "it anew, as far as the hub still has its samples"
        )
