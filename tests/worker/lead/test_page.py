"""What the page of a run without our driver shows."""

from types import SimpleNamespace

import pytest

from hetero_hvd.config import JobConfig
from hetero_hvd.messages import NodeSampled
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
