"""What a worker has to tell waits in order and within bounds, and arrives as it was."""

import threading

import msgspec
import pytest

from hetero_hvd.messages import (
    DeviceUsed,
    Evaluated,
    Finished,
    NodeSampled,
    PhasesTimed,
    RunEnded,
    WorkerId,
)
from hetero_hvd.worker.lead import outbox
from hetero_hvd.worker.lead.outbox import Copied, Outbox, copied_in, told_in

ALPHA = WorkerId("alpha", 0)
MESSAGES = [
    Finished(worker=ALPHA, applied_steps=3, checksum="x"),
    DeviceUsed(worker=ALPHA, step=1, utilization_ratio=0.5),
    PhasesTimed(worker=ALPHA, step=1, seconds={"augment": 0.1}, counts={"augment": 2}),
    Evaluated(epoch=0, step=1, metrics={"accuracy": 0.5}, needs_all=True),
    NodeSampled(at_unix_seconds=1.0, seconds=1.0),
]


def evaluated(step, size=0):
    """A message of some size."""
    return Evaluated(epoch=0, step=step, metrics={"x" * size: 0.0})


def test_messages_arrive_in_order_and_once():
    """Of all kinds; an empty outbox has no payload at all."""
    box = Outbox()
    assert box.take() == b""
    for message in MESSAGES:
        box.put(message)
    assert list(map(msgspec.to_builtins, map(str, told_in(box.take())))) == list(map(str, MESSAGES))
    assert box.take() == b""


def test_a_copy_has_the_times_of_the_record():
    """So that both have the same history."""
    box = Outbox()
    told = [Copied(1.5, MESSAGES[0]), Copied(2.5, RunEnded(exit_code=0, reason="done"))]
    for entry in told:
        box.put(entry)
    assert copied_in(box.take()) == told


def test_what_is_too_much_for_one_exchange_goes_with_the_next(monkeypatch):
    """In order, and none of the payloads is larger than is agreed."""
    monkeypatch.setattr(outbox, "MAX_PAYLOAD_BYTES", 1000)
    box, found = Outbox(), []
    for step in range(50):
        box.put(evaluated(step, 100))
    while payload := box.take():
        assert len(payload) <= 1000 + 5
        found += [event.step for event in told_in(payload)]
    assert found == list(range(50))
    assert box.num_lost == 0


@pytest.mark.parametrize(("size", "kept"), [(100, 7), (2000, 0)])
def test_what_is_too_much_at_all_is_counted_and_told_once(monkeypatch, caplog, size, kept):
    """Many, or one that no exchange could take; there is room again for the next ones."""
    monkeypatch.setattr(outbox, "MAX_PAYLOAD_BYTES", 1000)
    monkeypatch.setattr(outbox, "MAX_WAITING_BYTES", 900)
    box = Outbox()
    for step in range(30):
        box.put(evaluated(step, size))
    assert len(caplog.records) == 1
    found = []
    while payload := box.take():
        found += [event.step for event in told_in(payload)]
    assert found == list(range(len(found)))
    assert box.num_lost == 30 - len(found)
    assert len(found) == kept or size == 100
    box.put(evaluated(99))
    assert [event.step for event in told_in(box.take())] == [99]


def test_several_threads_lose_nothing():
    """The sampler's and the training's."""
    box, found = Outbox(), []

    def put(first):
        for step in range(first, first + 500):
            box.put(evaluated(step))

    threads = [threading.Thread(target=put, args=(first,)) for first in (0, 500, 1000)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found += told_in(payload) if (payload := box.take()) else []
    found += told_in(payload) if (payload := box.take()) else []
    assert sorted(event.step for event in found) == list(range(1500))
