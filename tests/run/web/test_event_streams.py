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


def test_a_viewer_too_many_is_told_until_another_one_goes():
    """In whatever way that one goes."""

    async def look(seen):
        return 1, b"" if seen else b"1"

    async def act():
        streams = EventStreams(look, 0.0)
        events = [streams.answer().body_iterator for _ in range(MAX_STREAMS)]
        for one in events:
            await anext(one)
        assert streams.answer() == f"{MAX_STREAMS} viewers are connected already"
        await events.pop().aclose()
        with pytest.raises(ZeroDivisionError):
            await events.pop().athrow(ZeroDivisionError())
        for one in (streams.answer().body_iterator, streams.answer().body_iterator):
            await anext(one)
            events.append(one)
        assert isinstance(streams.answer(), str)
        for one in events:
            await one.aclose()

    asyncio.run(act())
