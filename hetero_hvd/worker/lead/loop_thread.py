"""A thread with an asyncio loop, to which others hand what is to be done there."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable

from hetero_hvd.run.tolerance import Tolerance

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Calls; further ones are counted and left out."""

Call = Callable[[], None]


class LoopThread:
    """Runs in order what it is given, one after the other; whoever gives never waits.

    What fails there is told once and does no harm: nobody trains in this thread.

    Args:
        what: It does, in words.
        begin: Awaited in the thread before all else.
        end: Awaited in the thread when it is closed and all is done.
        max_waiting: See `MAX_WAITING`.

    Attributes:
        tolerance: Counts what has failed.
        num_lost: Calls that were left out.
    """

    def __init__(
        self,
        what: str,
        *,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.tolerance = Tolerance(logger.warning)
        self.num_lost = 0
        self._what = what
        self._begin = begin
        self._end = end
        self._max_waiting = max_waiting
        self._calls: deque[Call] = deque()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._has_begun = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"hetero-hvd: {what}", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Have something done in the thread, unless it is closed; from any thread, never waits."""
        if self._is_closed:
            return
        if len(self._calls) >= self._max_waiting:
            self.num_lost += 1
            if self.num_lost == 1:
                logger.warning("%s does not keep up: what it misses is counted", self._what)
            return
        self._calls.append(call)
        self._wake(self._work)

    def close(self) -> None:
        """End when all that was given is done; see `join`."""
        if not self._is_closed:
            self._is_closed = True
            self._wake(self._closing.set)

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end; whether it has come in time."""
        self._thread.join(timeout_seconds)
        if self.num_lost:
            logger.warning("%s has missed %d events", self._what, self.num_lost)
        return not self._thread.is_alive()

    def _wake(self, call: Call) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        with self.tolerance.watching(self._what):
            await self._begin()
        self._has_begun = True
        self._work()
        await self._closing.wait()
        self._work()
        with self.tolerance.watching(f"the end of {self._what}"):
            await self._end()

    def _work(self) -> None:
        while self._has_begun and self._calls:
            with self.tolerance.watching(self._what):
                self._calls.popleft()()
