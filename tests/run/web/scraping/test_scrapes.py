"""How long the end of a run waits for whoever looks at it."""

import asyncio

import pytest

from hetero_hvd.run.web.scraping.scrapes import Scrapes

NEVER = 1e9


@pytest.mark.parametrize(
    ("scraped_at", "now", "most", "seconds"),
    [
        ((), 100.0, NEVER, 0.0),
        ((99.0,), 100.0, NEVER, 0.0),
        ((94.0, 99.0), 100.0, NEVER, 6.5),
        ((10.0, 94.0, 99.0), 100.0, NEVER, 6.5),
        ((94.0, 99.0), 200.0, NEVER, 0.0),
        ((30.0, 99.0), 100.0, NEVER, 0.0),
        ((94.0, 99.0), 100.0, 2.0, 2.0),
    ],
    ids=["nobody", "once", "regularly", "of late", "not any more", "too rarely", "at most"],
)
def test_only_a_regular_scraper_is_waited_for(scraped_at, now, most, seconds):
    """One more scrape is waited for where it will come; else the end of a run is not delayed."""
    times = iter([*scraped_at, now])
    scrapes = Scrapes(max_seconds=most, clock=lambda: next(times))
    for _ in scraped_at:
        scrapes.note()
    assert scrapes.seconds_to_next() == seconds


@pytest.mark.parametrize("what", ["note", "hurry"])
def test_the_next_scrape_ends_the_wait(what):
    """And so does who is in a hurry."""
    times = iter([94.0, 99.0, 100.0, 101.0])

    async def wait():
        scrapes = Scrapes(clock=lambda: next(times))
        scrapes.note()
        scrapes.note()
        waiting = asyncio.create_task(scrapes.next())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        getattr(scrapes, what)()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(wait())
