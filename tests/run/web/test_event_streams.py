"""Streams of events: what is new, a sign of life where nothing is, and not too many of them."""

import asyncio

import pytest

from hetero_hvd.run.web import event_streams
from hetero_hvd.run.web.event_streams import MAX_STREAMS, EventStreams

SIGN = b": still here\n\n"
NUMBERS = {
    "the same": ([1, 1, 1], [b"data: 1\n\n", SIGN, SIGN]),
    "always another": ([1, 2, 3], [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]),
    "one that comes back": ([1, 2, 1], [b"data: 1\n\n", b"data: 2\n\n", b"data: 1\n\n"]),
    "news after silence": ([1, 1, 2], [b"data: 1\n\n", SIGN, b"data: 2\n\n"]),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_only_what_is_new_is_sent(case, monkeypatch):
    """And a sign of life, as often as there is none."""
    numbers, expected = NUMBERS[case]
    monkeypatch.setattr(event_streams, "KEEP_ALIVE_SECONDS", 0.0)
    left = iter(numbers)

    async def look(seen):
        number = next(left)
        return number, b"" if number == seen else str(number).encode()

    async def act():
        events = EventStreams(look, 0.0).answer().body_iterator
        found = [await anext(events) for _ in numbers]
        await events.aclose()
        return found

    assert asyncio.run(act()) == expected


class Viewer:
    """Has been granted a stream; looks at it, and fails at the first news if it is to."""

    def __init__(self, streams, error=None):
        self.leaving = asyncio.Event()
        self._error = error
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        self.looking = asyncio.create_task(streams.answer()(scope, self._receive, self._send))

    async def _receive(self):
        await self.leaving.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if self._error is not None and message.get("body"):
            raise self._error


def test_a_viewer_too_many_is_told_until_another_one_goes():
    """In whatever way that one goes; also those count who have only just asked."""

    async def look(seen):
        return 1, b"" if seen else b"1"

    async def act():
        streams = EventStreams(look, 0.0)
        defect = ZeroDivisionError()
        viewers = [Viewer(streams, defect), *(Viewer(streams) for _ in range(MAX_STREAMS - 1))]
        assert streams.answer().startswith(f"{MAX_STREAMS} viewers are connected already")
        await asyncio.sleep(0)
        viewers[1].leaving.set()
        viewers[2].looking.cancel()
        await asyncio.wait([viewer.looking for viewer in viewers[:3]])
        assert viewers[0].looking.exception() is not None
        for _ in range(3):
            assert not isinstance(streams.answer(), str)
        assert isinstance(streams.answer(), str)
        for viewer in viewers[3:]:
            viewer.leaving.set()
        await asyncio.wait([viewer.looking for viewer in viewers])

    asyncio.run(act())
