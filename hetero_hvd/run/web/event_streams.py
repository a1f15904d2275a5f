"""Streams of events to whoever looks at a page, as browsers take them: what is new, when it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

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
        self._open: set[object] = set()

    def answer(self) -> Response | str:
        """One more stream; why not, if there are as many as there may be."""
        if len(self._open) >= MAX_STREAMS:
            return f"{MAX_STREAMS} viewers are connected already; close another one, or ask later"
        return _EventStream(self._events(), self._open)

    async def _events(self) -> AsyncIterator[bytes]:
        seen: object = None
        idle_seconds = 0.0
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


class _EventStream(StreamingResponse):
    """Counts as open from when it is granted, as many may ask at once, to its end."""

    def __init__(self, events: AsyncIterator[bytes], opened: set[object]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._opened = opened
        opened.add(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened.discard(self)
