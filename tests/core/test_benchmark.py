"""A benchmark's curve is the device's, its verdict the spread's, and it ends in time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.benchmark import (
    BLOCK_STEPS,
    MAX_ROUNDS,
    SizeSchedule,
    fit,
    is_valid,
    sizes_to_try,
    spread,
    verdict,
)

SIZES = st.lists(st.integers(1, 10_000), min_size=2, max_size=6, unique=True)
TIMES = st.floats(1e-6, 1e3)


@given(SIZES, st.floats(1e-4, 10), st.floats(1e-6, 1), st.sampled_from([0, 7, 64]))
def test_a_curve_without_noise_is_found_again(sizes, overhead, slope, micro_batch_size):
    """It passes through the measured points."""
    true = StepTimeModel(
        overhead_seconds=overhead, seconds_per_sample=slope, micro_batch_size=micro_batch_size
    )
    found = fit([(size, true.step_seconds(size)) for size in sizes], micro_batch_size)
    for size in sizes:
        assert found.step_seconds(size) == pytest.approx(true.step_seconds(size), rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 10_000), TIMES), min_size=1, max_size=8))
def test_any_points_give_a_curve_that_can_be_used(points):
    """However senseless they are: overhead >= 0, slope > 0, both finite."""
    found = fit(points, 0)
    assert 0 <= found.overhead_seconds < math.inf
    assert 0 < found.seconds_per_sample < math.inf


@given(st.lists(TIMES, min_size=3, max_size=30), st.floats(0.01, 100))
def test_the_spread_has_no_unit(values, factor):
    """Seconds or hours: the verdict is the same; equal repeats have none."""
    scaled = [factor * value for value in values]
    assert spread(scaled) == pytest.approx(spread(values), rel=1e-9, abs=1e-9)
    assert spread([values[0]] * 5) == pytest.approx(0, abs=1e-9)


def test_one_outlier_costs_nothing_and_a_second_load_costs_the_verdict():
    """Single late repeats are the operating system's; half of them late is somebody else."""
    calm = [1.0, 1.01, 0.99, 1.0, 1.02]
    assert verdict(spread([*calm, 9.0])) == "valid"
    assert verdict(spread([*calm, 1.5, 1.6, 1.5, 1.7, 1.6])) == "noisy"
    assert verdict(spread(calm[:2])) == "too few repeats"
    assert not is_valid(None)


@pytest.mark.parametrize(
    ("total", "named", "sizes"),
    [
        (64, {}, [4, 8, 16, 32, 64]),
        (3, {}, [1, 3]),
        (1, {}, [1]),
        (64, {"capacity": 20}, [1, 2, 5, 10, 20]),
        (64, {"multiple": 16}, [16, 32, 64]),
        (64, {"multiple": 16, "capacity": 20}, [16]),
    ],
)
def test_sizes_are_halves_of_what_a_worker_may_have(total, named, sizes):
    """Rising, within its capacity, and of whole grains."""
    assert sizes_to_try(total, **named) == sizes


def drive(schedule, seconds_of):
    """Take steps until it is over; gives (step, size) of each."""
    taken, elapsed = [], 0.0
    while not schedule.is_over(elapsed):
        step = 100 + len(taken)
        size = schedule.size_at(step, elapsed)
        assert schedule.size_at(step, elapsed) == size
        elapsed += seconds_of(step - 100, size)
        schedule.observe(step, size, seconds_of(step - 100, size))
        taken.append(size)
        assert len(taken) < 10_000
    return taken, elapsed


def test_a_fast_model_is_measured_some_rounds_and_no_longer():
    """Blocks of each size, rising, round after round."""
    schedule = SizeSchedule([4, 8], 100.0)
    taken, elapsed = drive(schedule, lambda _, size: 1e-3 * size)
    assert taken[: 2 * BLOCK_STEPS] == [4] * BLOCK_STEPS + [8] * BLOCK_STEPS
    assert len(taken) <= 2 * BLOCK_STEPS * (MAX_ROUNDS + 1)
    assert elapsed < 1
    assert [result.local_batch_size for result in schedule.results()] == [4, 8]


def test_the_first_step_of_a_block_only_warms_up():
    """However slow it is, it is in no result."""
    schedule = SizeSchedule([4, 8], 10.0)
    drive(schedule, lambda step, size: 0.5 if step % BLOCK_STEPS == 0 else 0.01 * size)
    for result in schedule.results():
        assert result.busy_seconds == pytest.approx(0.01 * result.local_batch_size)
        assert result.spread_ratio == pytest.approx(0, abs=1e-9)


@given(st.floats(1e-3, 5), st.floats(1e-4, 0.5))
def test_it_ends_in_time_unless_two_sizes_cannot_be_had(overhead, slope):
    """No larger size is begun that would take too long; two sizes are measured in any case."""
    sizes, budget = sizes_to_try(64), 15.0
    schedule = SizeSchedule(sizes, budget)
    _, elapsed = drive(schedule, lambda _, size: overhead + slope * size)
    two = BLOCK_STEPS * (2 * overhead + slope * sum(sizes[:2]))
    largest = schedule.results()[-1].local_batch_size
    block = BLOCK_STEPS * (overhead + slope * largest)
    assert elapsed <= max(2 * budget, two) + block
    assert len(schedule.results()) >= 2 or elapsed > 2 * budget


def test_the_rest_of_an_epoch_is_not_what_was_asked_for():
    """A smaller last batch teaches nothing about the size that was planned."""
    schedule = SizeSchedule([8], 10.0)
    for step in range(3):
        schedule.size_at(step, 0.0)
        schedule.observe(step, 3, 1.0)
    assert schedule.results() == ()
