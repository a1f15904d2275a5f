"""What a worker sees of its own speed, and which steps it tells of."""

from __future__ import annotations

import pytest

from hetero_hvd.worker.timing.step_times import StepTimes

SHARE, STEP = 16, 0.1
COLUMNS = ("data_wait", "transfer", "forward", "backward", "comm_wait", "optimizer")


def step(times, own=STEP, *, evaluation=0.0, share=SHARE, planned=None):
    """Take one step, of a whole batch unless told; whether it was worth an exchange."""
    planned = share if planned is None else planned
    times.look(share, own + evaluation, evaluation, planned=planned)
    changed = times.has_changed
    seconds = dict.fromkeys(COLUMNS, 0.0) | {"forward": own, "evaluation": evaluation}
    times.add(share, seconds, {}, planned=planned)
    return changed


@pytest.fixture(name="times")
def settled_times():
    """Of a worker that has taken ten like steps since the last exchange."""
    times = StepTimes()
    assert not any(step(times) for _ in range(10))
    return times


CASES = {
    "as always": ({}, False, 11),
    "slower": ({"own": 3 * STEP}, True, 1),
    "faster": ({"own": STEP / 3}, True, 1),
    "evaluation": ({"evaluation": 1.0}, True, 11),
    "short evaluation": ({"evaluation": STEP / 50}, False, 11),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_worth_an_exchange_and_an_evaluation_hides_no_step(times, name):
    """Steps before another speed tell of what was; an evaluation makes nobody another worker."""
    words, is_urgent, num_steps = CASES[name]
    assert step(times, **words) is is_urgent
    row = times.take()
    assert row.num_steps == num_steps
    mean = words.get("evaluation", 0.0) / num_steps
    assert row.evaluation_seconds == pytest.approx(mean)


WINDOWS = {  # (share, planned) of each step; what is told: steps, and samples in each
    "whole batches": ([(16, 16)] * 3, (3, 16)),
    "an epoch ends on the exchange": ([(16, 16)] * 5 + [(7, 16)], (5, 16)),
    "an epoch ends before it": ([(16, 16)] * 2 + [(7, 16)] + [(16, 16)] * 3, (5, 16)),
    "it ends with no part for this worker": ([(16, 16), (0, 16)], (1, 16)),
    "each step is an epoch's last": ([(7, 16)] * 2, (2, 7)),
    "only the last is in it": ([(7, 16)], (1, 7)),
    "the last, then whole ones": ([(7, 16), (16, 16)], (1, 16)),
    "a new plan": ([(16, 16), (24, 24), (24, 24)], (2, 24)),
    "a new plan takes all away": ([(16, 16), (0, 0)], (1, 0)),
    "a new plan at the end of an epoch": ([(16, 16), (9, 24)], (1, 9)),
    "a new plan as small as the end of an epoch": ([(16, 16), (7, 16), (7, 7)], (1, 7)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_smaller_batch_at_the_end_of_an_epoch_hides_no_whole_one(name):
    """Where every exchange falls on it, it alone would be told of."""
    steps, told = WINDOWS[name]
    times = StepTimes()
    for share, planned in steps:
        step(times, share=share, planned=planned)
    row = times.take()
    assert (row.num_steps, row.local_batch_size) == told


def test_a_worker_without_a_part_is_in_no_hurry(times):
    """Though the last step that it had was another one."""
    assert step(times, 5 * STEP)
    assert not any(step(times, 0.0, share=0) for _ in range(3))


SHORT = {
    "a spike": ([3, 1, 1, 1, 1, 1, 1], []),
    "spikes": ([3, 3, 1, 3, 3, 1, 0.3], []),
    "slower from now on": ([3] * 8, [4, 5]),
    "faster from now on": ([0.3] * 8, [4, 5]),
}


@pytest.mark.parametrize("name", SHORT)
def test_of_short_steps_several_in_a_row_are_a_change(name):
    """An exchange costs more than such a step: what has lasted for 50 ms is told, twice."""
    ratios, told = SHORT[name]
    times = StepTimes()
    assert not any(step(times, 0.01) for _ in range(10))
    found = [step(times, 0.01 * ratio) for ratio in ratios]
    assert [number for number, is_told in enumerate(found) if is_told] == told
