"""What the page of a run without our driver shows."""

import asyncio
from types import SimpleNamespace

import pytest

from hetero_hvd.config import JobConfig
from hetero_hvd.messages import NodeSampled, RunEnded
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.worker.lead.page import LeadPage


@pytest.mark.parametrize(
    ("sample_seconds", "age_seconds", "is_shown"),
    [(1, 0, True), (1, 9, True), (1, 11, False), (30, 31, True), (30, 89, True), (30, 91, False)],
)
def test_a_node_is_among_the_metrics_until_three_samples_are_missed(
    sample_seconds, age_seconds, is_shown
):
    """Also where it is sampled seldom: its series do not come and go."""
    bus, now = EventBus(), [100.0]
    tracker = SimpleNamespace(diagnosis=SimpleNamespace(findings=tuple))
    page = LeadPage(JobConfig(sample_seconds=sample_seconds), "r-0", None, tracker, bus)
    page._metrics._nodes._clock = lambda: now[0]
    bus.publish(NodeSampled(node="a", load=1.0))
    now[0] += age_seconds
    assert (b"hetero_hvd_node_load" in page._metrics.render()[0]) == is_shown


@pytest.mark.parametrize("is_scraped", [True, False], ids=["scraped", "never scraped"])
@pytest.mark.parametrize("is_over", [True, False], ids=["over", "goes on elsewhere"])
def test_a_regular_scraper_sees_how_a_run_has_ended(is_scraped, is_over):
    """Else it would take rank 0 for lost, which an alert tells; nobody else is waited for."""

    async def end():
        bus = EventBus()
        tracker = SimpleNamespace(diagnosis=SimpleNamespace(findings=tuple))
        page = LeadPage(JobConfig(), "r-0", None, tracker, bus)
        for _ in range(2 if is_scraped else 0):
            await asyncio.sleep(0.5)
            page._scraped("")
        bus.publish(RunEnded(exit_code=0, reason="done"))
        closing = asyncio.create_task(page.close(is_over=is_over))
        await asyncio.sleep(0.05)
        assert closing.done() == (not is_scraped or not is_over)
        assert b'hetero_hvd_run_active{run_id="r-0"} 0.0' in page._scraped("").page
        await asyncio.wait_for(closing, 5)

    asyncio.run(end())
