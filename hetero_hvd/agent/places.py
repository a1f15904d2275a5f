"""Who has the agent's slots: no more workers than slots, and who comes too late hears why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

MAX_QUESTIONS = 16
"""Drivers that are told the number of GPUs at the same time."""

WAIT_SECONDS = 15.0
"""For a slot to become free whose worker ends already, or whose job asks for it again: longer than
the agent takes to notice that a driver is out of reach, and to end its worker."""

MAX_JOB_CHARACTERS = 120


class AgentEnding(Protocol):
    """A worker, as far as it matters here."""

    @property
    def is_ending(self) -> bool:
        """Whether its driver has let it go."""


@dataclass(frozen=True, eq=False)
class _Taken:
    job: str
    peer: str
    worker: AgentEnding


class NoPlace(Exception):  # noqa: N818 - an answer, not a fault
    """There is no free slot; the text is for the people in front of the driver."""


class Places:
    """The slots of a node. Used in the loop's thread only.

    Args:
        num_slots: Workers that may run at once.
        wait_seconds: See `WAIT_SECONDS`.

    Attributes:
        closed_by: Why nobody gets a slot or an answer for now, in words; empty: who comes may.
    """

    def __init__(self, num_slots: int, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.closed_by = ""
        self._num_slots = num_slots
        self._wait_seconds = wait_seconds
        self._taken: list[_Taken] = []
        self._num_questions = 0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def place(self, job: str, peer: str, worker: AgentEnding) -> AsyncIterator[None]:
        """Have a slot; one that is about to become free is waited for.

        Args:
            job: Whose worker it is.
            peer: Address of its driver.
            worker: Tells when it has been let go.

        Raises:
            NoPlace: Others have all slots, or nobody gets any.
        """
        shown = "".join(c if c.isprintable() else "?" for c in job[:MAX_JOB_CHARACTERS])
        mine = _Taken(shown, peer, worker)
        await self._wait(mine)
        self._taken.append(mine)
        try:
            yield
        finally:
            self._taken.remove(mine)
            self._changed.set()

    @asynccontextmanager
    async def question(self) -> AsyncIterator[None]:
        """Be told something; takes no slot.

        Raises:
            NoPlace: Too many ask at once, or nobody is answered.
        """
        if self.closed_by:
            raise NoPlace(self.closed_by)
        if self._num_questions >= MAX_QUESTIONS:
            raise NoPlace(f"{MAX_QUESTIONS} drivers ask this agent at the same time already")
        self._num_questions += 1
        try:
            yield
        finally:
            self._num_questions -= 1

    async def _wait(self, mine: _Taken) -> None:
        deadline = time.monotonic() + self._wait_seconds
        while len(self._taken) >= self._num_slots and not mine.worker.is_ending:
            if self.closed_by:
                raise NoPlace(self.closed_by)
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0 or not any(self._may_go(other, mine) for other in self._taken):
                raise NoPlace(self._in_words())
            self._changed.clear()
            try:
                async with asyncio.timeout(min(left_seconds, 1.0)):  # nobody tells of `is_ending`
                    await self._changed.wait()
            except TimeoutError:
                continue
        if self.closed_by:
            raise NoPlace(self.closed_by)

    @staticmethod
    def _may_go(other: _Taken, mine: _Taken) -> bool:
        return other.worker.is_ending or (other.job, other.peer) == (mine.job, mine.peer)

    def _in_words(self) -> str:
        owners = sorted({f"job {taken.job or '?'} from {taken.peer}" for taken in self._taken})
        slots = "its only slot" if self._num_slots == 1 else f"all {self._num_slots} slots"
        return (
            f"no free slot: {' and '.join(owners)} has {slots}; wait for its end, or start the "
            "agent with more --slots"
        )
