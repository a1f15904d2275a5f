"""Whether a worker that says nothing is busy: what its supervisor sees of its process.

A call into C that holds the interpreter for seconds stops the heartbeat of a healthy worker. Its
supervisor is another process, and tells when asked: its answer is a sign in the worker's output.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

ASK_SECONDS = 0.5
"""Between two questions."""

FRESH_SECONDS = 3.0
"""An older answer says nothing about now: machine or network may be gone."""

BUSY_RATIO = 0.3
"""Of one core: more than Horovod's own thread ever uses (0.07), less than any computation."""

ACTIVE_SECONDS = 0.01
"""Between two answers: a process that only waits uses nothing."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One answer.

    Attributes:
        at_seconds: When it came, monotonic clock.
        state: As ps has it.
        own_seconds: Processor time that the worker has used or waited for.
        all_seconds: The same of all that it has started, itself included.
    """

    at_seconds: float
    state: str
    own_seconds: float
    all_seconds: float


class Pulse:
    """The last answers about one process. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=4)
        self._asked_at_seconds = float("-inf")

    def is_due(self, now_seconds: float) -> bool:
        """Whether to ask again; remembers it."""
        is_due = now_seconds >= self._asked_at_seconds + ASK_SECONDS
        if is_due:
            self._asked_at_seconds = now_seconds
        return is_due

    def told(self, look: Look) -> None:
        """An answer has come."""
        self._looks.append(look)

    @property
    def has_answered(self) -> bool:
        """Whether its supervisor has told anything of the process."""
        return bool(self._looks)

    def is_busy(self, now_seconds: float) -> bool:
        """Whether the worker itself computes, though it says nothing."""
        fresh = self._fresh(now_seconds)
        if len(fresh) < 2 or fresh[-1].state in "Tt":  # noqa: PLR2004
            return False
        seconds = fresh[-1].at_seconds - fresh[0].at_seconds
        return fresh[-1].own_seconds - fresh[0].own_seconds > BUSY_RATIO * seconds

    def is_active(self, now_seconds: float) -> bool:
        """Whether it or what it has started does anything at all."""
        fresh = self._fresh(now_seconds)
        return bool(fresh) and fresh[-1].all_seconds - fresh[0].all_seconds > ACTIVE_SECONDS

    def _fresh(self, now_seconds: float) -> list[Look]:
        return [look for look in self._looks if look.at_seconds > now_seconds - FRESH_SECONDS]
