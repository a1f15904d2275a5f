"""How a job ended, and who else has a say in when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hetero_hvd.exit_codes import EXIT_NOT_KEPT
from hetero_hvd.messages import CheckpointFailed


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
