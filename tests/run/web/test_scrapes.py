"""How long the end of a run waits for whoever looks at it."""

import pytest

from hetero_hvd.driver.http_service import _seconds_to_next


@pytest.mark.parametrize(
    ("scraped_at", "now", "seconds"),
    [
        ((), 100.0, 0.0),
        ((99.0,), 100.0, 0.0),
        ((94.0, 99.0), 100.0, 6.5),
        ((94.0, 99.0), 200.0, 0.0),
        ((30.0, 99.0), 100.0, 0.0),
    ],
    ids=["nobody", "once", "regularly", "not any more", "too rarely"],
)
def test_only_a_regular_scraper_is_waited_for(scraped_at, now, seconds):
    """One more scrape is waited for where it will come; else the end of a run is not delayed."""
    assert _seconds_to_next(scraped_at, now) == seconds
