"""How a job ended, and who else has a say in when."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hetero_hvd.errors import JobError
from hetero_hvd.exit_codes import EXIT_NOT_KEPT
from hetero_hvd.messages import CheckpointFailed, CheckpointWritten
from hetero_hvd.run.records.earlier_run import earlier_run, is_url, plain_place


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: For the command line.
        reason: In words.
        is_orderly: Whether the workers end by themselves.
        is_called_off: Whether it had to make room, and could go on elsewhere or later.
    """

    exit_code: int
    reason: str
    is_orderly: bool = False
    is_called_off: bool = False

    def without(self, missing: Sequence[CheckpointFailed]) -> JobResult:
        """The same, where the state that the job was to leave behind is not there.

        Args:
            missing: The last checkpoints that could not be written; none: it is as it was.
        """
        if not missing:
            return self
        words = [
            f"its last checkpoint, of step {one.step}, is missing: {one.error}" for one in missing
        ]
        code = self.exit_code or EXIT_NOT_KEPT
        return replace(self, exit_code=code, reason="; ".join([self.reason, *words]))


class Lender(Protocol):
    """Who lends the machines for a time: a batch system.

    Attributes:
        repeats_sigterm: Whether it sends SIGTERM several times, so that a further one means no
            more than the first.
    """

    repeats_sigterm: bool

    def must_end(self) -> str:
        """Why the job has to end now, in words; empty: it may go on. Asked often."""

    def news(self) -> Sequence[str]:
        """What the user has to be told of the machines, a line each, and each once. Asked often."""

    def ended(self, result: JobResult) -> None:
        """The job has ended, its processes are gone and its files are closed."""


class Owner:
    """The lender of machines that nobody takes away."""

    repeats_sigterm = False

    def must_end(self) -> str:
        """See `Lender`."""
        return ""

    def news(self) -> Sequence[str]:
        """See `Lender`."""
        return ()

    def ended(self, result: JobResult) -> None:
        """See `Lender`."""


def newest_in_words(newest: CheckpointWritten, output: Path, *, may_resume: bool) -> str:
    """Where the newest state is that a job has kept, and how to go on from it.

    Args:
        newest: That state, as its writer tells of it: of another machine's disk, perhaps.
        output: The run's folder.
        may_resume: Whether it is the user who starts the job again, and says what it goes on from.
    """
    words = f"newest checkpoint: {newest.path}"
    if not may_resume:
        return words
    try:
        place = earlier_run(output).checkpoints
    except JobError:
        return words
    if not newest.path.startswith(f"{plain_place(place)}/"):
        return words
    added = ["--resume", str(output)] + ["--checkpoint-url", place] * is_url(place)
    return f"{words}; to go on from it add {shlex.join(added)} before the script"
