"""Where jobs are placed by what is known of links: a node behind a slow one, listed first."""

from __future__ import annotations

import sys
import time
from collections import Counter

import pytest

from hetero_hvd.core.queue.device_classes import JobShare
from hetero_hvd.core.queue.devices import DevicePool, QueueDevice
from hetero_hvd.core.queue.measured.link_book import FIRST_PATIENCE_SECONDS
from hetero_hvd.core.queue.queue_events import (
    JobFinished,
    JobMeasured,
    JobProgressed,
    JobSubmitted,
    LinksMeasured,
)
from hetero_hvd.core.queue.queue_plan import decide
from hetero_hvd.core.queue.queue_state import QueueState
from hetero_hvd.core.queue.why_waiting import why
from hetero_hvd.errors import UserError

FAST, SLOW = 2.0**-33, 2.0**-24
"""Seconds per byte: 8.6 GB/s and 17 MB/s."""

MUCH = 2.0**27
KNOWN = [("ab", FAST), ("abs", SLOW)]
ALL_SLOW = [("ab", SLOW), ("as", SLOW), ("bs", SLOW)]
HEAVY = {"bytes_per_unit": MUCH}
"""At one unit of work per second, a second of computation and 8 s of the slow link."""

TWO = {"min_devices": 2, "max_devices": 2}
ONE = {"max_devices": 1}
SIXTEEN = "a a a a b b b b c c c c d d d d"
COMMAND = {"is_shrinkable": False, "max_devices": 1}

# fmt: off
PLACEMENTS = {
    "unmeasured": ("s a b", [], TWO, "s a"),
    "equal": ("s a b", [("abs", FAST)], TWO, "s a"),
    "slow, and the job is not measured": ("s a b", KNOWN, TWO, "a b"),
    "slow": ("s a b", KNOWN, TWO | HEAVY, "a b"),
    "slow: no more is taken": ("s a b", KNOWN, HEAVY, "a b"),
    "slow, but all of the job lies beside its computation":
        ("s a b", KNOWN, HEAVY | {"bytes_per_unit": MUCH / 64, "hidden_ratio": 1.0}, "s a b"),
    "slow, but the job is small": ("s a b", KNOWN, {"bytes_per_unit": 1.0}, "s a b"),
    "slow, and the job needs all": ("s a b", KNOWN, {"min_devices": 3} | HEAVY, "s a b"),
    "slow everywhere": ("s a b", ALL_SLOW, HEAVY, "s"),
    "slow, with a faster device": ("s*1.5 a b", KNOWN, HEAVY, "a b"),
    "slow, with a device that is faster than all others": ("s*3 a b", KNOWN, HEAVY, "s"),
    "slow, with several devices, which need no link": ("s s s a b", KNOWN, HEAVY, "s s s"),
    "fast, with several devices": ("s s a a b", KNOWN, HEAVY, "a a b"),
    "equal, with several devices: the first of another node alone brings nothing":
        (SIXTEEN, [("abcd", 2.0**-31)], HEAVY | {"max_devices": 16}, SIXTEEN),
    "equal, with several devices: a node is enough":
        (SIXTEEN, [("abcd", 2.0**-27)], HEAVY | {"max_devices": 16}, "a a a a"),
    "slow: one device leaves good links to others": ("a s b", KNOWN, ONE | HEAVY, "s"),
    "slow: so does a command": ("a s b", KNOWN, COMMAND, "s"),
    "slow: a faster device counts for more": ("s a*1.5 b", KNOWN, ONE | HEAVY, "a"),
    "slow, in the own pool: others are lent": ("s a@lab b@lab", KNOWN, HEAVY, "s"),
}
"""Nodes of the devices, `node*speed@pool`; what was measured; the job; nodes that it gets."""
# fmt: on


def cluster(words):
    """Devices of these nodes."""
    found = []
    for number, word in enumerate(words.split()):
        rest, _, pool = word.partition("@")
        node, _, speed = rest.partition("*")
        device = QueueDevice(
            device=f"{node}:{number}",
            kind=f"x{speed}",
            node=node,
            pool=pool or "default",
            relative_speed=float(speed or 1) / 3,
        )
        found.append(device)
    return found


def rates_of(devices):
    """Kind to units per second."""
    return {each.kind: 3 * each.relative_speed for each in devices}


@pytest.fixture(name="place")
def placer(request_of):
    """Make a queue that has measured links, and submit a job; with the name `job`."""

    def make(words, history, fields):
        devices = cluster(words)
        state = QueueState(devices, [DevicePool(pool="lab")])
        for nodes, seconds in history:
            state.handle(LinksMeasured(tuple(nodes), seconds, MUCH), 0)
        fields = {"max_devices": 3, "work": 1e5} | fields
        state.handle(JobSubmitted(request_of("job", rates=rates_of(devices), **fields)), 0)
        decide(state, 0)
        return state

    return make


def nodes_of(state, job="job"):
    """Nodes of a job's devices, sorted."""
    return sorted(state.devices[name].node for name in state.jobs[job].devices)


@pytest.mark.parametrize("case", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_where_a_job_is_placed(place, case):
    """By what its devices, their links and its own reductions are known to be."""
    words, history, fields, expected = case
    state = place(words, history, fields)
    assert nodes_of(state) == sorted(expected.split())
    assert decide(state, 60) == []


def test_a_job_that_measures_a_slow_link_leaves_it(place):
    """And says why it has fewer than it may; a link that is mended is used again."""
    state = place("s a b", [("ab", FAST)], {})
    assert nodes_of(state) == ["a", "b", "s"]
    job = state.jobs["job"]
    state.handle(JobMeasured("job", 1e5, job.request.rates, MUCH), 60)
    state.handle(LinksMeasured(("a", "b", "s"), SLOW, MUCH), 60)
    (decision,) = decide(state, 60)
    assert decision.kind == "shrink"
    assert nodes_of(state) == ["a", "b"]
    assert why(state, "job", 60).endswith("left out, as the link is too slow for it: s")
    state.handle(JobProgressed("job", 100.0), 60 + FIRST_PATIENCE_SECONDS)
    decide(state, 60 + FIRST_PATIENCE_SECONDS)  # by now it may have been mended
    assert nodes_of(state) == ["a", "b", "s"]
    state.handle(LinksMeasured(("a", "b", "s"), FAST, MUCH), 700)
    decide(state, 700)
    assert nodes_of(state) == ["a", "b", "s"]


# fmt: off
LEFT_OUT = {
    "its link is slow": ("s a b", KNOWN, {}, "s"),
    "it is slow itself, behind a good link": ("s*0.05 a b", [("abs", FAST)], {}, ""),
    "it is slow itself, behind a slow link": ("s*0.05 a b", KNOWN, {}, ""),
    "all links are slow": ("s a b", ALL_SLOW, {}, "a b"),
    "the job has all that it may": ("s a b", KNOWN, TWO, ""),
}
"""As `PLACEMENTS`; and what is left out for its link."""
# fmt: on


@pytest.mark.parametrize("case", LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_a_link_is_named_as_the_cause_where_it_is_the_cause(place, case):
    """A device that brings nothing with the best of links is none of its cases."""
    words, history, fields, expected = case
    state = place(words, history, HEAVY | fields)
    _, _, left_out = why(state, "job", 0).partition("; left out, as the link is too slow for it: ")
    assert left_out.replace(",", "") == expected


def test_a_job_that_began_on_a_slow_link_moves_to_a_good_one(place):
    """Either of its nodes may be to blame: one is tried with another as soon as it is time."""
    state = place("s a b", [], TWO)
    assert nodes_of(state) == ["a", "s"]
    state.handle(JobMeasured("job", 1e5, state.jobs["job"].request.rates, MUCH), 60)
    state.handle(LinksMeasured(("a", "s"), SLOW, MUCH), 60)
    assert decide(state, 60) == []
    now = 60 + FIRST_PATIENCE_SECONDS / 2
    assert [each.kind for each in decide(state, now)] == ["move"]
    assert nodes_of(state) == ["a", "b"]
    state.handle(LinksMeasured(("a", "b"), FAST, MUCH), now)
    assert decide(state, now + FIRST_PATIENCE_SECONDS / 4) == []


def test_nobody_moves_to_and_fro(place, request_of):
    """A job that its link slows down is faster while it lacks a device: that is no gain."""
    history = [("ac", FAST), ("abc", SLOW / 4), ("abcs", SLOW)]
    state = place("a b s s", history, {"min_devices": 3, "work": 1e3} | HEAVY)
    assert nodes_of(state) == ["a", "b", "s"]
    rates = state.jobs["job"].request.rates
    state.handle(JobSubmitted(request_of("single", rates=rates, work=1e6, max_devices=1)), 0)
    assert [each.kind for each in decide(state, 0)] == ["start"]
    assert [decide(state, now) for now in (5, 10, 15)] == [[], [], []]


def test_two_jobs_share_the_links_by_who_needs_them(place, request_of):
    """A job of one device goes where the link is slow, for one that reduces much."""
    state = place("a s b", KNOWN, ONE | {"min_devices": 1})
    assert nodes_of(state) == ["s"]
    state.handle(JobFinished("job"), 10)
    rates = state.ended["job"].request.rates
    wide = request_of("wide", rates=rates, work=1e5, **TWO, **HEAVY)
    single = request_of("single", rates=rates, work=1e4, max_devices=1)
    state.handle(JobSubmitted(wide), 20)
    state.handle(JobSubmitted(single), 20)
    decide(state, 20)
    assert (nodes_of(state, "wide"), nodes_of(state, "single")) == (["a", "b"], ["s"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bytes_per_unit": -1.0}, "bytes_per_unit must"),
        ({"hidden_ratio": 2.0}, "hidden_ratio must"),
    ],
)
def test_what_cannot_be_is_refused(request_of, fields, words):
    """In words."""
    with pytest.raises(UserError, match=words):
        request_of("job", **fields)


def test_alike_devices_are_weighed_once(request_of, monkeypatch):
    """A plan for 100 jobs on 64 nodes of 4 devices, of 4 kinds, behind links of 4 speeds."""
    speeds = (1.0, 0.5, 0.2, 2.0)
    words = " ".join(f"n{node}*{speeds[node % 4]}" for node in range(64) for _ in range(4))
    devices = cluster(words)
    state = QueueState(devices)
    for node in range(0, 64, 2):
        nodes = f"n{node}", f"n{node + 1}"
        state.handle(LinksMeasured(nodes, 2.0 ** -(24 + 3 * (node // 2 % 4)), MUCH), 0)
    for number in range(100):
        rates = {
            kind: rate * (1.0 + (number * (7 + i) % 10) / 10)
            for i, (kind, rate) in enumerate(rates_of(devices).items())
        }
        heavy = {"bytes_per_unit": 2.0 ** (18 + number % 10), "hidden_ratio": number % 3 / 2}
        job = request_of(
            str(number),
            rates=rates,
            max_devices=2 ** (number % 4),
            work=1e3 * number + 1e3,
            **heavy,
        )
        state.handle(JobSubmitted(job), 0)
    num_weighed = Counter()
    weigh = JobShare.rate_of_counts

    def counted(share, *args):
        num_weighed[share.job.request.job] += 1
        return weigh(share, *args)

    monkeypatch.setattr(JobShare, "rate_of_counts", counted)
    began_at = time.process_time()
    assert decide(state, 0)
    seconds = time.process_time() - began_at
    sys.stdout.write(f"{seconds:.2f} s of processor time, {num_weighed.total()} weighed\n")
    assert num_weighed.total() < 10_000
