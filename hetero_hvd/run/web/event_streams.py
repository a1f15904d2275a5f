"""Streams of events to whoever looks at a page, as browsers take them: what is new, when it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response, StreamingResponse

KEEP_ALIVE_SECONDS = 15.0
MAX_STREAMS = 32
"""At a time, of one server."""

Look = Callable[[object], Awaitable[tuple[object, bytes]]]
"""Told what a viewer has seen last (None: nothing): what there is now, by which that is known, and
its text; empty if it is the same."""


class EventStreams:
    """The streams of one server. Used in the loop's thread only.

    Args:
        look: See there.
        every_seconds: Between two looks for news: what changes fast must not flood its viewers. A
            slow viewer misses states, and never holds any up.
    """

    def __init__(self, look: Look, every_seconds: float) -> None:
        self._look = look
        self._every_seconds = every_seconds
        self._number = 0

    def answer(self) -> Response | str:
        """One more stream; why not, if there are as many as there may be."""
        if self._number >= MAX_STREAMS:
            return f"{MAX_STREAMS} viewers are connected already"
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        self._number += 1
        seen: object = None
        idle_seconds = 0.0
        try:
            while True:
                seen, news = await self._look(seen)
                if news:
                    idle_seconds = 0.0
                    yield b"data: " + news + b"\n\n"
                elif idle_seconds >= KEEP_ALIVE_SECONDS:
                    idle_seconds = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(self._every_seconds)
                idle_seconds += self._every_seconds
        finally:
            self._number -= 1
