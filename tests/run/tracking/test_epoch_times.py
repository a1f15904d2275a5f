"""When an epoch began and ended, as far as who follows a run can know."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.messages import EpochBegan, NodesPriced, RunEnded, StepsTimed, WorkersJoined
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.reports.costs import costs_of
from hetero_hvd.run.tracking.run_tracker import RunTracker

from .test_summary import UNIFORM, joined, timed

CONFIG = ClusterConfig(
    job=JobConfig(), nodes=(NodeConfig(name="alpha"), NodeConfig(name="beta", relative_speed=0.5))
)
BEGIN = 1e9


def followed(monkeypatch, num_steps, epoch_steps, exchange_steps, pause_seconds):
    """The record of steps of a second each, with a pause after each epoch.

    Returns:
        It, and epoch to when it began, with the end of the last one.
    """
    events = []
    bus = EventBus()
    tracker = RunTracker(CONFIG, lambda *_: None, None, bus)
    bus.subscribe(lambda at, event: events.append((at, event)), "")
    now = BEGIN
    monkeypatch.setattr(bus, "_now", lambda: now)
    bus.publish(NodesPriced(per_hour={"alpha": 3600.0}, unpriced=()))
    bus.publish(joined())
    begins, waiting, due = [], None, 0
    for step in range(num_steps):
        epoch = step // epoch_steps
        if step % epoch_steps == 0:
            now += pause_seconds if step else 0.0
            begins.append(now)
        now += 1.0
        if waiting is not None:  # it was submitted after the step before
            bus.publish(waiting)
            waiting = None
        if step >= due:
            told = timed(step, *UNIFORM)
            waiting = StepsTimed(
                rendezvous_id=told.rendezvous_id, step=step, epoch=epoch, loss=1.0,
                timings=told.timings, exchange_seconds=0.0,
            )  # fmt: skip
            due = step + exchange_steps
    bus.publish(RunEnded(exit_code=0, reason="done"))
    tracker.close()
    kinds = (EpochBegan, NodesPriced, RunEnded, WorkersJoined)
    kept = tuple(told for told in events if isinstance(told[1], kinds))
    return Record(events=kept, rollups=()), [*begins, now]


@pytest.mark.parametrize("pause_seconds", [0.0, 0.5, 30.0])
@pytest.mark.parametrize("exchange_steps", [1, 2, 7, 100])
@pytest.mark.parametrize("epoch_steps", [1, 3, 10, 90])
def test_an_epoch_is_never_told_longer_or_shorter_than_it_may_be(
    monkeypatch, epoch_steps, exchange_steps, pause_seconds
):
    """Whether many epochs lie between two exchanges, or many exchanges in an epoch."""
    record, begins = followed(monkeypatch, 300, epoch_steps, exchange_steps, pause_seconds)
    costs = list(costs_of(record).epochs)
    assert costs
    seconds = [end - begin for begin, end in pairwise(begins)]
    for found in costs:
        own = seconds[found.epoch]
        assert found.least.seconds <= own <= found.most.seconds
        assert found.least.seconds <= found.told.seconds <= found.most.seconds
        least, told, most = (each.cost or 0.0 for each in (found.least, found.told, found.most))
        assert least <= told <= most
