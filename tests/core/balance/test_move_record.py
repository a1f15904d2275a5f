"""Moves are held against what they brought, not against what was promised."""

from __future__ import annotations

import math

import pytest

from hetero_hvd.core.balance.move_record import (
    FEWEST_ROWS,
    FIRST_HOLD_STEPS,
    LAST_HOLD_STEPS,
    MOST_ROWS,
    MoveRecord,
)

OLD, NEW, THIRD = (64, 64), (96, 32), (80, 48)


def measured(record, plan, seconds, *, first_step=0, rows=FEWEST_ROWS):
    """Give the record some tables under a plan; the last step."""
    for row in range(rows):
        record.observe(plan, seconds, first_step + row)
    return first_step + rows - 1


def moved(record, before, after, *, promised, seconds, first_step=0):
    """A move and its measurement; the last step."""
    record.moved(before, after, promised, first_step)
    return measured(record, after, seconds, first_step=first_step, rows=MOST_ROWS)


@pytest.mark.parametrize(
    ("promised", "brought", "holds"),
    [
        (0.30, 0.30, False),
        (0.30, 0.20, False),
        (0.30, 0.10, True),
        (0.30, 0.00, True),
        (0.30, -0.50, True),
        (0.02, 0.02, False),
        (0.02, 0.00, True),
    ],
)
def test_a_move_must_bring_half_of_what_it_promised(promised, brought, holds):
    """Else the model is not believed for a while."""
    record = MoveRecord()
    measured(record, OLD, 1.0)
    step = moved(record, OLD, NEW, promised=promised, seconds=1 - brought, first_step=10)
    assert record.holds(step) is holds


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        ([1.0, 1.02, 1.04, 1.06, 1.08], [1.02, 1.04, 1.06], False),
        ([1.0, 1.02, 1.04, 1.06, 1.08], [1.18, 1.20, 1.22], True),
        ([1.0, 1.0, 1.0, 1.0, 1.0], [1.05, 1.05, 1.05], True),
    ],
    ids=["kept in a drift", "broken in a drift", "broken"],
)
def test_what_a_drift_costs_is_not_the_fault_of_a_move(before, after, holds):
    """Promised are 10 %: in a drift they came if the rows go on 10 % below the line from before."""
    record = MoveRecord()
    for step, seconds in enumerate(before):
        record.observe(OLD, seconds, step)
    record.moved(OLD, NEW, 0.1, 4)
    for step, seconds in enumerate([*after, *(after[-1:] * (MOST_ROWS if holds else 0))], 7):
        record.observe(NEW, seconds, step)
    assert record.holds(7 + len(after) + MOST_ROWS) is holds


def test_each_failure_doubles_the_hold_up_to_a_limit_and_a_success_ends_the_row():
    """40, 80, 160 ... 1280 steps; after a move that kept its promise 40 again."""
    record, step, found = MoveRecord(), 0, []
    for _ in range(8):
        measured(record, OLD, 1.0, first_step=step)
        began_at = step + FEWEST_ROWS
        record.moved(OLD, NEW, 0.3, step)
        measured(record, NEW, 1.0, first_step=began_at)
        found.append(record.hold_until_step - (began_at + FEWEST_ROWS - 1))
        step = record.hold_until_step
        record.moved(NEW, OLD, math.nan, step)
    expected = [min(FIRST_HOLD_STEPS * 2**n, LAST_HOLD_STEPS) for n in range(8)]
    assert found == expected
    measured(record, OLD, 1.0, first_step=step)
    moved(record, OLD, THIRD, promised=0.3, seconds=0.7, first_step=step + 10)
    assert not record.holds(step + 40)
    end = moved(record, THIRD, NEW, promised=0.3, seconds=0.71, first_step=step + 50)
    assert record.hold_until_step <= end + FIRST_HOLD_STEPS


def test_two_moves_in_a_row_are_judged_as_one():
    """The second came before the first was measured: both together must keep their word."""
    record = MoveRecord()
    measured(record, OLD, 1.0)
    record.moved(OLD, THIRD, 0.2, 5)
    step = moved(record, THIRD, NEW, promised=0.2, seconds=0.9, first_step=10)
    assert record.holds(step)


def test_the_fastest_plan_is_the_way_back_if_it_is_clearly_so():
    """Within the resolution of the measurement all plans are equally good."""
    record = MoveRecord()
    measured(record, OLD, 1.0)
    moved(record, OLD, NEW, promised=0.3, seconds=1.2, first_step=10)
    assert record.faster_than(NEW) == (OLD, 1.0)
    moved(record, NEW, THIRD, promised=0.3, seconds=1.01, first_step=50)
    assert record.faster_than(THIRD) is None
    assert record.is_no_gain(OLD, NEW)
    assert not record.is_no_gain(NEW, OLD)
    assert not record.is_no_gain(OLD, (1, 127))  # never measured


def test_a_plan_that_takes_another_time_than_before_voids_all_that_was_measured():
    """It was in force before and took 1.0; now it takes 2.0: the workers have changed."""
    record = MoveRecord()
    measured(record, OLD, 1.0)
    step = moved(record, OLD, NEW, promised=0.3, seconds=1.2, first_step=10)
    assert record.holds(step)
    record.moved(NEW, OLD, math.nan, step)
    step = measured(record, OLD, 2.0, first_step=step)
    assert not record.holds(step)
    assert math.isnan(record.seconds(NEW))


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_rows_that_measure_nothing_are_left_out(seconds):
    """NaN, infinity, zero."""
    record = MoveRecord()
    measured(record, OLD, seconds)
    assert math.isnan(record.seconds(OLD))
    assert record.faster_than(OLD) is None


def test_a_move_that_is_never_measured_is_not_waited_for_without_end():
    """Rows under the new plan may never come, as when a worker's tell nothing."""
    record = MoveRecord()
    measured(record, OLD, 1.0)
    step = moved(record, OLD, NEW, promised=0.3, seconds=1.2, first_step=10)
    record.moved(NEW, THIRD, 0.3, step)
    assert record.is_pending(step + 1)
    measured(record, THIRD, math.nan, first_step=step, rows=100)
    assert not record.is_pending(step + 100)


def test_a_smaller_batch_is_no_faster_plan():
    """The last batch of an epoch takes less time, and its shares are no plan for a whole one."""
    record = MoveRecord()
    measured(record, OLD, 1.0)
    measured(record, (16, 4), 0.1)
    assert record.faster_than(OLD) is None
    measured(record, NEW, 0.5)
    assert record.faster_than(OLD) == (NEW, 0.5)
