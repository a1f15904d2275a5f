"""How a job ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: For the command line.
        reason: In words.
        is_orderly: Whether the workers end by themselves.
    """

    exit_code: int
    reason: str
    is_orderly: bool = False
