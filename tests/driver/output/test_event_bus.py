"""The stream of a run's events."""

from __future__ import annotations

from hetero_hvd.driver.output.event_bus import EventBus
from hetero_hvd.messages import RunEnded


def test_every_observer_hears_every_event_in_order():
    """All observers get the same events with times that do not go back."""
    journal = EventBus()
    first, second = [], []
    journal.subscribe(lambda at, event: first.append((at, event)))
    journal.subscribe(lambda at, event: second.append((at, event)))
    events = [RunEnded(exit_code=code, reason="") for code in range(3)]
    for event in events:
        journal.publish(event)
    assert [event for _, event in first] == events
    assert first == second
    assert first == sorted(first, key=lambda pair: pair[0])


def test_an_observer_that_cannot_write_is_left_out(caplog):
    """A full disk ends the records, neither the run nor the other observers."""
    journal = EventBus()
    heard = []

    def full_disk(_at, _event):
        raise OSError(28, "No space left on device")

    journal.subscribe(full_disk)
    journal.subscribe(lambda _at, event: heard.append(event))
    for code in range(2):
        journal.publish(RunEnded(exit_code=code, reason=""))
    assert len(heard) == 2
    assert caplog.text.count("No space left") == 1


def test_an_observer_that_is_wrong_is_told_of_once(caplog):
    """It only watches: the run and the other observers go on, and it hears what comes later."""
    journal = EventBus()
    heard = []

    def wrong(_at, event):
        heard.append(event)
        raise KeyError("contention")

    journal.subscribe(wrong)
    journal.subscribe(lambda _at, event: heard.append(event))
    for code in range(3):
        journal.publish(RunEnded(exit_code=code, reason=""))
    assert len(heard) == 6
    assert caplog.text.count("Traceback") == 1
