"""What a place for checkpoints has to do; `registry` has those that there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import msgspec

T = TypeVar("T")

PREFIX = "step-"
"""With which the names of all checkpoints begin; what else there is in the same place is none."""

NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that say what is there; of any other nobody knows, so that it is never a lack."""


class CheckpointPart(msgspec.Struct, frozen=True, kw_only=True):
    """A further payload of a checkpoint, which another worker has written.

    Attributes:
        name: Of it, within the checkpoint.
        sha256: Of its bytes.
        num_bytes: Of it.
    """

    name: str
    sha256: str
    num_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says of itself.

    Attributes:
        run: Which run of the job wrote it.
        run_number: Of that run among those that wrote into the store; later ones have larger ones.
        applied_steps: Optimizer steps applied.
        sha256: Of the payload.
        num_bytes: Of the payload.
        metrics: Of the last evaluation, if there was one after the last step; JSON has no NaN and
            no infinity: they are left out, and null in those of earlier versions.
        trainer: Whose state it is: which `Trainer` of the script, from 1 in the order in which they
            are made.
        cpu_capability: As of `CheckpointSettings`.
        job: Likewise; earlier versions had none, and the run was named after it if it goes on.
        parts: What is needed beside the payload: it is no checkpoint without all of them.
    """

    run: str
    applied_steps: int
    sha256: str
    num_bytes: int
    metrics: dict[str, float | None] = {}
    run_number: int = 0
    trainer: int = 1
    cpu_capability: str = ""
    job: str = ""
    parts: tuple[CheckpointPart, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Of the payload and all parts."""
        return self.num_bytes + sum(part.num_bytes for part in self.parts)


Writing = Callable[[BinaryIO], T]
"""Writes into an empty file, which it may read as well, and says what that is."""


def encoded(manifest: Manifest) -> bytes:
    """A manifest as JSON.

    Raises:
        DecodeError: It could not be read back.
    """
    content = msgspec.json.encode(manifest)
    decoded(content)
    return content


def decoded(content: bytes) -> Manifest:
    """The inverse of `encoded`.

    Raises:
        DecodeError: It is no manifest.
    """
    return msgspec.json.decode(content, type=Manifest)


class CheckpointStore(Protocol):
    """Keeps checkpoints by name: bytes and a manifest, there whole or not at all.

    Several processes use the same store; several may write a series, as one that was rank 0 keeps
    its state while the next one writes; any may read. Which checkpoints are kept, taken or believed
    is not for the store to decide.
    """

    def place(self, name: str) -> str:
        """Where a checkpoint is, for people."""

    def written_in(self) -> Path:
        """The folder of this machine in which a checkpoint is written, if only at first."""

    def listed(self) -> list[tuple[str, Manifest]]:
        """All that are complete, in any order; those whose manifest cannot be read are logged.

        A place in which nothing was ever put is empty.

        Raises:
            OSError: It, or a manifest, cannot be read, so that nobody knows what is there.
        """

    def read(self, name: str, part: CheckpointPart | None = None) -> bytes:
        """The payload, or a part, as it was found.

        Raises:
            Unreadable: It is not there.
            OSError: It cannot be read, this time or by this user.
        """

    def put(self, name: str, write: Callable[[BinaryIO], Manifest], *, series: str) -> bool:
        """Keep a checkpoint: listed as soon as it is complete and lasting, not before.

        Args:
            name: Of it; begins with `PREFIX`.
            write: Writes the payload into a file, which it may read as well, and describes it.
            series: What is written one after the other: what a writer of another one of them has
                left half is cleared away, once it is known to be dead or has long done nothing.

        Returns:
            Whether it is kept: one that is there already under that name stays as it is.

        Raises:
            OSError: It cannot be written; nothing is left of it. What `write` raises likewise.
        """

    def begin(self, name: str, *, series: str) -> str:
        """Begin a checkpoint that several write: where they are to, for their store of this kind.

        Raises:
            OSError: Nothing can be written.
        """

    def has_begun(self, place: str) -> bool:
        """Whether this process finds what another one has begun.

        Raises:
            OSError: That cannot be seen.
        """

    def put_part(self, place: str, part: str, write: Writing[CheckpointPart]) -> CheckpointPart:
        """Write a part of what was begun; lasting, but nothing that is listed.

        Raises:
            OSError: It cannot be written, or what was begun was given up.
        """

    def finish(self, place: str, name: str, write: Writing[Manifest], *, series: str) -> bool:
        """Write the payload of what was begun, whose parts are all there, and list it.

        Args:
            place: As of `begin`, and `name` and `series` as they were given to it.
            name: Of the checkpoint.
            write: As of `put`.
            series: As of `put`.

        Returns:
            Whether it is kept; see `put`.

        Raises:
            OSError: It cannot be written; nothing is left of it. What `write` raises likewise.
        """

    def give_up(self, place: str) -> None:
        """Remove what was begun, as far as possible."""

    def add_metrics(self, name: str, metrics: Mapping[str, float | None]) -> None:
        """Put further metrics into the manifest of a checkpoint, at once.

        Raises:
            OSError: That is not possible; the manifest is as before.
            DecodeError: The manifest, old or new, cannot be read.
        """

    def remove(self, name: str) -> None:
        """Remove a checkpoint, as far as possible."""
