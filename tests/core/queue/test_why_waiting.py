"""One sentence about each state of a job."""

from __future__ import annotations

import math

import pytest

from hetero_hvd.core.queue.devices import DevicePool
from hetero_hvd.core.queue.needs import DeviceNeed
from hetero_hvd.core.queue.queue_events import (
    JobCancelled,
    JobFailed,
    JobHeld,
    JobProgressed,
    JobSubmitted,
)
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.core.queue.why_waiting import why


def test_each_state_has_its_sentence(device, request_of):
    """With how long it will be, where that can be told."""
    pools = [DevicePool(pool="prod", max_devices_per_user=2)]
    devices = [device("t4", number, pool="prod") for number in range(3)]
    state = QueueState(devices, pools)
    for request in (
        request_of("n", pool="prod", min_devices=2, is_shrinkable=False, work=288.0),
        request_of("m", "bob", pool="prod", is_shrinkable=False, time_limit_seconds=1440),
    ):
        state.handle(JobSubmitted(request), 0)
    decide(state, 0)
    late = {
        "waits": request_of("waits", "eve", pool="prod", is_shrinkable=False),
        "limited": request_of("limited", pool="prod", is_shrinkable=False),
        "follows": request_of("follows", pool="prod", after=("n",)),
        "wide": request_of("wide", "eve", pool="prod", min_devices=4),
        "big": request_of("big", pool="prod", needs=(DeviceNeed.parse("memory>=80GiB"),)),
        "held": request_of("held", "eve", pool="prod", is_shrinkable=False),
        "gone": request_of("gone", "eve", pool="prod", is_shrinkable=False),
    }
    for request in late.values():
        state.handle(JobSubmitted(request), 0)
    state.handle(JobHeld("held"), 0)
    state.handle(JobCancelled("gone"), 0)
    decide(state, 0)
    assert {name: why(state, name, 0) for name in ["n", *late]} == {
        "n": "n runs on 2 devices: t4-0, t4-1; about 12 min left",
        "waits": "waits waits: prod has 0 of 3 devices free; about 12 min",
        "limited": "limited waits: ann has 2 of at most 2 devices of prod",
        "follows": "follows waits until n has succeeded",
        "wide": "wide waits: prod has 3 devices, and it needs 4",
        "big": "big waits: prod has 0 devices that fulfil memory>=80GiB, and it needs 1",
        "held": "held is held: `hetero-hvd queue release held` lets it start",
        "gone": "gone has ended: it was cancelled",
    }


def test_what_failed_says_when_it_is_tried_again(device, request_of):
    """And what it has done is not forgotten."""
    state = QueueState([device("t4")])
    state.handle(JobSubmitted(request_of("a", retries=2)), 0)
    decide(state, 0)
    state.handle(JobProgressed("a", 10.0), 60)
    state.handle(JobFailed("a", "foreign_memory"), 60)
    assert why(state, "a", 60) == "a failed once and is tried again in about 10 s"


def test_a_full_array_says_so(device, request_of):
    """Instead of naming devices, of which there are enough."""
    state = QueueState([device("t4"), device("t4", 1)])
    for name in "ab":
        request = request_of(name, array="sweep", array_limit=1, max_devices=1)
        state.handle(JobSubmitted(request), 0)
    decide(state, 0)
    assert why(state, "b", 0) == "b waits: 1 elements of sweep run, as many as may at a time"


FIRST = "a job that has waited 24 h comes before all others"
NOT_KNOWN = f"a has 0 of 1 device free; when one is free is not known; {FIRST}"
WAITS = {
    "a moment": (0, f"{NOT_KNOWN}, this one in 24 h"),
    "half a day": (
        43200,
        f"{NOT_KNOWN}, this one in 12 h",
    ),
    "a day": (
        86400,
        f"a has 0 of 1 device free; it comes first: {FIRST}",
    ),
}


@pytest.mark.parametrize(("at", "words"), WAITS.values(), ids=WAITS)
def test_nobody_knows_how_long_the_others_take(device, request_of, at, words):
    """How long it waits at most is not told as how long it waits."""
    state = QueueState([device("t4", pool="a")])
    for name in "nw":
        state.handle(JobSubmitted(request_of(name, pool="a", work=math.nan)), 0)
    decide(state, 0)
    assert why(state, "w", at) == f"w waits: {words}"
