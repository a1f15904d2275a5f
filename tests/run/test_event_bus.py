"""The stream of a run's events."""

from __future__ import annotations

import time

import pytest

from hetero_hvd.messages import RunEnded, StepsTimed, StepTiming, WorkerId, WorkersJoined
from hetero_hvd.run import event_bus
from hetero_hvd.run.event_bus import EventBus
from tests.module_clock import give_clock


def test_every_observer_hears_every_event_in_order():
    """All observers get the same events with times that do not go back."""
    bus = EventBus()
    first, second = [], []
    bus.subscribe(lambda at, event: first.append((at, event)), "one")
    bus.subscribe(lambda at, event: second.append((at, event)), "two")
    events = [RunEnded(exit_code=code, reason="") for code in range(3)]
    for event in events:
        bus.publish(event)
    assert [event for _, event in first] == events
    assert first == second
    assert first == sorted(first, key=lambda pair: pair[0])


def test_an_observer_that_has_failed_is_told_of_once():
    """It only watches: the run and the other observers go on, and it hears what comes later."""
    said, heard = [], []
    bus = EventBus(said.append)

    def wrong(_at, event):
        heard.append(event)
        raise OSError(28, "No space left on device")

    bus.subscribe(wrong, "the record")
    bus.subscribe(lambda _at, event: heard.append(event), "the page")
    for code in range(3):
        bus.publish(RunEnded(exit_code=code, reason=""))
    assert len(heard) == 6
    assert bus.tolerance.num_errors == {"the record": 3}
    assert [line for line in said if line.startswith("the record has failed")] == said
    assert len(said) == 1


def test_without_some_the_run_cannot_go_on():
    """Whoever publishes gets their error, and the next event is handed out."""
    bus, heard = EventBus(), []

    def balancer(_at, event):
        heard.append(event.exit_code)
        if not event.exit_code:
            raise KeyError("plan")

    bus.subscribe(balancer, "")
    with pytest.raises(KeyError):
        bus.publish(RunEnded(exit_code=0, reason=""))
    bus.publish(RunEnded(exit_code=1, reason=""))
    assert heard == [0, 1]


def test_what_an_observer_publishes_comes_after_what_it_heard():
    """For all, wherever they stand in the order; a table comes right after its exchange."""
    bus, heard = EventBus(), []

    def answer(_at, event):
        if isinstance(event, StepsTimed):
            bus.publish(RunEnded(exit_code=3, reason="an answer"))

    bus.subscribe(answer, "")
    bus.subscribe(lambda _at, event: heard.append(type(event).__name__), "")
    bus.publish(
        WorkersJoined(
            rendezvous_id=1,
            workers=(WorkerId("alpha", 0),),
            applied_steps=0,
            global_batch_size=4,
            capacities=(-1,),
            prefetch_steps=0,
        )
    )
    timings = (StepTiming(**dict.fromkeys(StepTiming.__struct_fields__, 1)),)
    bus.publish(
        StepsTimed(
            rendezvous_id=1, step=0, epoch=0, loss=1.0, timings=timings, exchange_seconds=0.0
        )
    )
    assert heard == ["WorkersJoined", "StepsTimed", "StepTable", "RunEnded"]


@pytest.mark.parametrize("step_seconds", [-3600.0, 3600.0])
def test_a_clock_that_is_set_changes_no_duration(monkeypatch, step_seconds):
    """Times begin with the system's clock and go on by themselves."""
    began, ended = time.time(), RunEnded(exit_code=0, reason="")
    bus = EventBus()
    heard = []
    bus.subscribe(lambda at_unix_seconds, _: heard.append(at_unix_seconds), "")
    bus.publish(ended)
    give_clock(monkeypatch, event_bus, time=lambda: began + step_seconds)
    bus.publish(ended)
    assert heard[0] == pytest.approx(began, abs=5.0)
    assert 0.0 <= heard[1] - heard[0] < 5.0
