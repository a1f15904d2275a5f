"""What Prometheus is told of a queue, from its first job to its last."""

from __future__ import annotations

import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.queue_events import (
    DeviceChanged,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobHeld,
    JobSubmitted,
)
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.hub.queue.queue_metrics import QueueMetrics

P = "hetero_hvd_queue_"
DEVICES = [
    QueueDevice(device="fast", kind="a100", node="n", pool="prod"),
    QueueDevice(device="slow", kind="t4", node="m", pool="prod", relative_speed=0.25),
    QueueDevice(device="own", kind="t4", node="o", pool="lab"),
]


def job(name, user="ann", pool="lab", **more):
    """A submission."""
    return JobSubmitted(JobRequest(job=name, user=user, pool=pool, **more))


THREE = {"min_devices": 3, "max_devices": 3}
STORY = [
    (0, [job("a", "ann", "prod", min_devices=2, max_devices=2)]),
    (10, [job("b", "bob"), job("c", "bob", **THREE), job("d", after=("a",)), JobHeld("d")]),
    (20, [job("e", after=("b",)), DeviceChanged("own", "guest_busy")]),
    (100, [JobFinished("a"), JobCancelled("c"), DeviceChanged("own", "ready")]),
    (110, [JobFailed("b", "script_error"), DeviceChanged("slow", "failing")]),
]
EXPECTED = {
    f'{P}jobs{{pool="lab",state="held"}}': 1,
    f'{P}jobs{{pool="lab",state="running"}}': 0,
    f'{P}jobs{{pool="lab",state="waiting"}}': 0,
    f'{P}devices{{pool="prod",state="free"}}': 1,
    f'{P}devices{{pool="prod",state="failing"}}': 1,
    f'{P}jobs_ended_total{{outcome="succeeded",pool="prod"}}': 1,
    f'{P}jobs_ended_total{{outcome="cancelled",pool="lab"}}': 1,
    f'{P}jobs_ended_total{{outcome="failed",pool="lab"}}': 2,
    f'{P}device_seconds_total{{pool="prod",user="ann"}}': 100 * 1.25,
    f'{P}device_seconds_total{{pool="lab",user="bob"}}': 10 + 10,
    f'{P}wait_seconds_count{{pool="lab"}}': 2,
    f'{P}wait_seconds_sum{{pool="lab"}}': 80,
    f'{P}wait_seconds_bucket{{le="60.0",pool="lab"}}': 1,
    f'{P}longest_wait_seconds{{pool="lab"}}': 0,
}


def named(sample):
    """As the page shows it, its labels sorted."""
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}}"


def told(metrics, state):
    """The page, and name with labels to value."""
    page = metrics.render(state).page.decode()
    families = text_string_to_metric_families(page)
    return page, {named(one): one.value for family in families for one in family.samples}


def test_a_story_of_five_jobs():
    """Use is normalised; a job that follows a failed one has failed; what was before is not new."""
    now = 0.0
    metrics = QueueMetrics(lambda: now)
    state = QueueState(DEVICES)
    metrics.take(state)
    waits = {}
    for now, events in STORY:
        for event in events:
            state.handle(event, now)
        metrics.take(state, decide(state, now))
        waits[now] = told(metrics, state)[1][f'{P}longest_wait_seconds{{pool="lab"}}']
    page, found = told(metrics, state)
    assert {name: found[name] for name in EXPECTED} == pytest.approx(EXPECTED)
    assert waits == {0: 0, 10: 0, 20: 10, 100: 0, 110: 0}
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page.encode(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    again = QueueMetrics(lambda: now)
    again.take(state)
    again.take(state)
    assert "_total{" not in again.render(state).page.decode()
