"""The open connections of a server: never more than there are descriptors for.

The newest takes the place of the oldest, of its own address first, so that who parks connections
keeps nobody out. Used in the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

MAX_FOR_ONE_NAME = 4


@dataclass(eq=False)
class Caller:
    """One connection.

    Attributes:
        peer: Its other end's address.
        task: Serves it.
        precious_for: For whom it asks what only few may ask at once; such callers go last.
        is_sent_away: Whether it has to make room.
    """

    peer: str
    task: asyncio.Task[None]
    precious_for: str = ""
    is_sent_away: bool = False


class Callers:
    """All connections.

    Args:
        max_callers: Of all addresses; one of them may have half.
    """

    def __init__(self, max_callers: int) -> None:
        self._max_callers = max_callers
        self._open: dict[Caller, None] = {}  # in their order
        self._num_of: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._open)

    def came(self, peer: str) -> Caller:
        """The task that runs serves a new connection."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - called by a coroutine
        caller = Caller(peer, task)
        self._open[caller] = None
        self._num_of[peer] += 1
        if self._num_of[peer] > self._max_callers // 2:
            self._make_room(peer)
        elif len(self._open) > self._max_callers:
            self._make_room(max(self._num_of, key=self._num_of.__getitem__))
        return caller

    def went(self, caller: Caller) -> None:
        """It is closed."""
        if self._open.pop(caller, caller) is None:
            self._count_down(caller.peer)

    def make_precious(self, caller: Caller, name: str) -> None:
        """Others go first, but of those who ask for this name the oldest has to go when it is many.

        Args:
            caller: Who asks.
            name: For whom.
        """
        caller.precious_for = name
        same = [other for other in self._open if other.precious_for == name]
        if len(same) > MAX_FOR_ONE_NAME:
            self._send_away(same[0])

    def _make_room(self, peer: str) -> None:
        oldest = [caller for caller in self._open if caller.peer == peer]
        self._send_away(next((c for c in oldest if not c.precious_for), oldest[0]))

    def _send_away(self, caller: Caller) -> None:
        del self._open[caller]
        self._count_down(caller.peer)
        caller.is_sent_away = True
        caller.task.cancel()

    def _count_down(self, peer: str) -> None:
        self._num_of[peer] -= 1
        if not self._num_of[peer]:
            del self._num_of[peer]
