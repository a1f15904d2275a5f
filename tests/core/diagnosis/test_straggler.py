"""Stragglers are judged against their own best; a cause is named only where there is evidence."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from hetero_hvd.core.balance.step_time import StepTimeEstimator, StepTimeModel
from hetero_hvd.core.diagnosis.straggler import StragglerWatch
from hetero_hvd.core.simulation.simulation import row_of
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.messages import WorkerId

WORKERS = tuple(WorkerId(name, 0) for name in ("fast", "middle", "slow"))
SPEEDS = (1000.0, 500.0, 100.0)
SHARE = 50


@pytest.fixture(name="watched")
def watched_cluster():
    """Observe tables in which a worker's row is changed; give back what was said, in words."""

    class Watched:
        def __init__(self):
            self.watch = StragglerWatch()
            self.step = -1
            self.reports = []
            self.curves = {worker: StepTimeEstimator() for worker in WORKERS}

        def run(
            self, num_tables, change=lambda _index, row: row, shares=(SHARE,) * 3, overhead=0.0
        ):
            found = []
            for _ in range(num_tables):
                self.step += 1
                pairs = zip(shares, SPEEDS, strict=True)
                rows = [row_of(share, share / speed + overhead) for share, speed in pairs]
                rows = [change(index, row) for index, row in enumerate(rows)]
                for worker, row in zip(WORKERS, rows, strict=True):
                    curve = self.curves[worker]
                    ratio = curve.update(row.local_batch_size, row.busy_seconds)
                    if ratio is not None:
                        curve.rescale(ratio)
                found += self.watch.observe(WORKERS, rows, self.curves, step=self.step)
            self.reports += found
            return [event_in_words(report).partition(": ")[2] for report in found]

    return Watched()


def recall(watched):
    """All were measured in an earlier job."""
    for worker, speed in zip(WORKERS, SPEEDS, strict=True):
        model = StepTimeModel(overhead_seconds=0.0, seconds_per_sample=1 / speed)
        watched.curves[worker].recall(model, SHARE)
        watched.watch.recall(worker, watched.curves[worker].copy(), SHARE)


def slower(index, *, compute=1.0, wait=0.0):
    """Change one worker's row."""

    def change(at, row):
        if at != index:
            return row
        busy = row.forward_seconds + row.backward_seconds
        return row_of(row.local_batch_size, busy * compute, data_wait_seconds=wait)

    return change


def test_a_healthy_slow_card_is_never_flagged(watched):
    """A tenth of the others' speed is what it should have."""
    assert watched.run(100) == []


def test_it_is_slow_since_the_first_step_that_was_slow(watched):
    """Steps that no row contains, as the worker saw itself change after them, were well."""
    watched.run(20)
    watched.step += 15
    watched.run(20, slower(0, compute=2.0))
    (report,) = watched.reports
    assert report.since_step == 35


def test_a_worker_at_half_its_own_speed_is_found_and_the_cause_is_named(watched):
    """After a few tables, once; and it is well again when it is."""
    watched.run(20)
    (said,) = watched.run(20, slower(0, compute=2.0))
    assert said.startswith("fast:0 is slow: 0.5")
    assert said.endswith("(compute)")
    assert watched.reports[0].since_step == 20
    assert watched.run(20) == ["fast:0 is as fast as it should be again"]


def test_a_slow_disk_is_called_input(watched):
    """The time lost is the wait for data."""
    watched.run(20)
    (said,) = watched.run(20, slower(1, wait=0.1))
    assert said.endswith("(input)")


def test_two_causes_on_one_worker_are_both_named(watched):
    """Neither accounts for 80 % of the lost time, both together do."""
    watched.run(20)
    (said,) = watched.run(20, slower(1, compute=1.5, wait=0.05))
    assert said.endswith(("(input and compute)", "(compute and input)"))  # as floats add up
    (report,) = watched.reports
    assert report.causes == {"input": pytest.approx(0.5), "compute": pytest.approx(0.5)}


def test_three_causes_alike_are_not_guessed_at(watched):
    """No two of them account for 80 % of the lost time."""
    watched.run(20)

    def change(index, row):
        row = slower(1, compute=1.5, wait=0.05)(index, row)
        return msgspec.structs.replace(row, other_seconds=0.05 if index == 1 else 0.0)

    (said,) = watched.run(20, change)
    assert said.endswith("(unknown)")


def test_one_slow_step_is_no_straggler(watched):
    """A spike raises no verdict."""
    watched.run(20)
    assert watched.run(1, slower(0, compute=10.0)) == []
    assert watched.run(20) == []


LOST = {  # how many times as long its last steps took, tables without samples, whether it is told
    "after slow ones": ([3.0] * 3, 5, True),
    "after too few slow ones": ([3.0] * 2, 5, False),
    "after a spike among others": ([3.0, 1.0, 3.0, 3.0], 5, False),
    "after a little slower ones": ([1.1] * 4, 5, False),
    "after usual ones": ([1.0] * 4, 5, False),
    "in the last step of an epoch only": ([3.0] * 3, 1, False),
}


@pytest.mark.parametrize("when", LOST)
def test_a_worker_that_loses_all_samples_is_judged_by_its_last_steps(watched, when):
    """The balancer may need fewer tables than a verdict does, and then no more can come."""
    times, num_tables, is_told = LOST[when]
    watched.run(20)
    for longer in times:
        watched.run(1, slower(2, compute=longer))
    assert watched.reports == []
    watched.run(num_tables, shares=(SHARE, SHARE, 0))
    assert [str(report.worker) for report in watched.reports] == ["slow:0"] * is_told
    if is_told:
        (report,) = watched.reports
        assert report.speed_ratio == pytest.approx(1 / 3, rel=0.05)
        assert (report.cause, report.since_step) == ("compute", 20)
        assert watched.run(20) == ["slow:0 is as fast as it should be again"]


@pytest.mark.parametrize("num_before", range(18))
@pytest.mark.parametrize("is_recalled", [False, True])
def test_how_much_must_be_known_of_a_worker_that_loses_all_samples(
    watched, num_before, is_recalled
):
    """As much as of any: 16 rows, or 3 of one that was measured in an earlier job."""
    if is_recalled:
        recall(watched)
    watched.run(num_before)
    watched.run(3, slower(2, compute=3.0))
    watched.run(3, shares=(SHARE, SHARE, 0))
    is_known = num_before + 3 >= (3 if is_recalled else 16)
    if is_recalled and num_before == 3:
        is_known = False  # every other row: its steps might vary so much
    assert [str(report.worker) for report in watched.reports] == ["slow:0"] * is_known


@pytest.mark.parametrize(("longer", "is_told"), [(2.5, False), (3.0, False), (20.0, True)])
def test_the_last_word_of_a_worker_that_loses_its_samples_is_how_slow_it_is(
    watched, longer, is_told
):
    """It was told of, and has become far slower in its last steps."""
    watched.run(20)
    watched.run(12, slower(2, compute=2.5))
    watched.run(4, slower(2, compute=longer))
    watched.run(5, shares=(SHARE, SHARE, 0))
    assert len(watched.reports) == 1 + is_told
    assert watched.reports[-1].speed_ratio == pytest.approx(
        1 / (longer if is_told else 2.5), rel=0.1
    )


RETURNS = {  # how many times as long its steps take when it has samples again, and when it is well
    "well": ([1.0] * 6, 3),
    "not quite well": ([1.15] * 20, None),
    "slow": ([3.0] * 20, None),
    "with one good row": ([1.0] + [3.0] * 19, None),
    "slow at first": ([3.0] + [1.0] * 8, 6),
}


@pytest.mark.parametrize("how", RETURNS)
def test_a_worker_that_has_samples_again_is_not_well_by_one_row(watched, how):
    """Three rows say so at the least."""
    times, well_after = RETURNS[how]
    watched.run(20)
    watched.run(3, slower(2, compute=3.0))
    watched.run(4, shares=(SHARE, SHARE, 0))
    assert len(watched.reports) == 1
    for number, longer in enumerate(times, 1):
        said = watched.run(1, slower(2, compute=longer))
        assert bool(said) == (number == well_after), number


COMES_BACK = {  # well and slow rows before, times as long at first and then, row that names it
    "as slow": (20, 12, [], 3.0, 8),
    "slower": (20, 12, [], 20.0, 8),
    "a little slow": (20, 12, [], 1.3, 8),
    "as it should be": (20, 12, [], 1.0, None),
    "with a slow first step": (20, 12, [10.0], 1.0, None),
    "with slow first steps": (20, 12, [10.0] * 4, 1.0, None),
    "slow after good steps": (20, 12, [1.0] * 3, 3.0, 8),
    "slow, never told of": (20, 0, [], 3.0, 8),
    "slow, hardly known": (8, 3, [], 3.0, 16),
    "as it should be, hardly known": (8, 3, [], 1.0, None),
}


@pytest.mark.parametrize("how", COMES_BACK)
@pytest.mark.parametrize("num_times", [1, 2])
def test_a_worker_that_comes_back_is_judged_anew(watched, how, num_times):
    """It was no member for a time, and its trouble may be over, or not.

    It takes eight rows if it was a member long enough for it to be known how much its steps vary.
    """
    num_well, num_slow, at_first, longer, named_by = COMES_BACK[how]
    watched.watch.begin(WORKERS)
    watched.run(num_well)
    watched.run(num_slow, slower(2, compute=3.0))
    for _ in range(num_times):
        watched.watch.begin(WORKERS[:2])
        watched.watch.begin(WORKERS)
    back, named = watched.step + 1, []
    for number, factor in enumerate((at_first + [longer] * 30)[:30], 1):
        if watched.run(1, slower(2, compute=factor)):
            named.append(number)
    assert named == [named_by] * (named_by is not None)
    if named:
        assert watched.reports[-1].since_step == back + at_first.count(1.0)


@pytest.mark.parametrize("num_before", [0, 6])
def test_a_slow_worker_that_comes_back_with_another_share_is_still_slow(watched, num_before):
    """What it does there, where it was never well, is not what it can do."""
    smaller = (SHARE, SHARE, SHARE // 2)
    watched.watch.begin(WORKERS)
    watched.run(20)
    watched.run(12, slower(2, compute=4.0))
    watched.run(num_before, slower(2, compute=4.0), shares=smaller)
    watched.watch.begin(WORKERS[:2])
    watched.watch.begin(WORKERS)
    watched.reports.clear()
    watched.run(30, slower(2, compute=4.0), shares=smaller)
    (report,) = watched.reports
    assert report.speed_ratio == pytest.approx(1 / 4, rel=0.2)


@pytest.mark.parametrize("num_rows", range(1, 6))
def test_a_worker_that_comes_back_and_loses_all_samples_is_judged_by_three_rows(watched, num_rows):
    """The balancer needs no eight rows to take all samples from it, and then none follow."""
    watched.watch.begin(WORKERS)
    watched.run(20)
    watched.watch.begin(WORKERS[:2])
    watched.watch.begin(WORKERS)
    watched.run(num_rows, slower(2, compute=20.0))
    assert watched.reports == []
    watched.run(5, shares=(SHARE, SHARE, 0))
    assert [str(report.worker) for report in watched.reports] == ["slow:0"] * (num_rows >= 3)


def test_a_membership_that_keeps_a_slow_worker_changes_nothing(watched):
    """Another one has joined or left: it is not told twice."""
    watched.watch.begin(WORKERS)
    watched.run(20)
    assert len(watched.run(12, slower(2, compute=3.0))) == 1
    watched.watch.begin((*WORKERS, WorkerId("more", 0)))
    assert watched.run(30, slower(2, compute=3.0)) == []


@pytest.mark.parametrize("share", [1, 2, 4, 50])
def test_a_worker_of_short_steps_is_slow_as_long_as_it_is(watched, share):
    """With half of its share it takes as long as before: that does not make it well."""
    before, after = (share, 2 * share, share), (2 * share, share, share)
    watched.run(40, shares=before)
    watched.run(10, slower(1, compute=2.0), shares=before)
    watched.run(60, slower(1, compute=2.0), shares=after)
    (report,) = watched.reports
    assert (str(report.worker), report.is_slow) == ("middle:0", True)
    watched.run(20, shares=before)
    assert [report.is_slow for report in watched.reports] == [True, False]


def test_what_slows_all_alike_is_nobodys_fault(watched):
    """Everybody at 0.7 of the best speed: no verdict."""
    watched.run(20)

    def change(_index, row):
        return row_of(row.local_batch_size, row.busy_seconds / 0.7)

    assert watched.run(30, change) == []


def test_missing_timings_are_incomplete_and_not_balanced(watched):
    """The verdict abstains, and says so once."""
    watched.run(10)

    def change(index, row):
        fields = msgspec.structs.asdict(row) | {"forward_seconds": math.nan}
        return type(row)(**fields) if index == 2 else row

    assert watched.run(10, change) == ["slow:0: INCOMPLETE, its timings are missing"]


def test_a_remembered_curve_is_the_measure_from_the_first_table(watched):
    """A worker that comes back at half the speed of the last job is found."""
    recall(watched)
    (said,) = watched.run(30, slower(2, compute=2.0))
    assert said.startswith("slow:0 is slow")


def test_a_quota_that_holds_a_worker_back_is_called_throttle(watched):
    """Only if the time lost to it explains the time lost; one that was there before does not."""
    usual = 0.02

    def throttled(seconds, compute):
        def change(at, row):
            row = slower(0, compute=compute)(at, row)
            return replace_throttle(row, seconds if at == 0 else usual)

        return change

    watched.run(20, throttled(usual, 1.0))
    (said,) = watched.run(20, throttled(usual + 0.05, 2.0))
    assert said.endswith("(throttle)")
    watched.run(40, throttled(usual, 1.0))
    (said,) = watched.run(20, throttled(usual + 0.01, 2.0))
    assert said.endswith("(compute)")


QUOTA = 0.4


def under_quota(burst, quota=QUOTA, needs=1.0):
    """Rows of the first worker: it runs in a burst at first, and is then held back by a quota.

    Args:
        burst: Whether it waits so much for others that the quota does not matter.
        quota: Part of a processor that it gets.
        needs: So many times the usual processor time.
    """

    def change(at, row):
        used = needs * row.busy_seconds
        if at:
            return row
        busy = used if burst else used / quota
        step = used / quota
        fields = {"processor_seconds": used, "throttled_seconds": busy - used}
        row = row_of(row.local_batch_size, busy, step_seconds=step)
        return msgspec.structs.replace(row, **fields)

    return change


def test_a_worker_that_gets_all_that_its_quota_gives_is_healthy(watched):
    """That it once ran as if there were no quota, while it waited for others, is no best speed."""
    watched.run(20, under_quota(burst=True))
    assert watched.run(40, under_quota(burst=False)) == []


def test_a_quota_that_is_cut_makes_a_straggler(watched):
    """It gets a third of what it got."""
    watched.run(20, under_quota(burst=True))
    watched.run(40, under_quota(burst=False))
    (said,) = watched.run(20, under_quota(burst=False, quota=QUOTA / 3))
    assert said.startswith("fast:0 is slow: 0.33")
    assert said.endswith("(throttle)")


def test_a_quota_excuses_no_worker_that_needs_more_processor_time(watched):
    """A slower clock shows as processor time: the quota gives as much as before."""
    watched.run(20, under_quota(burst=True))
    watched.run(40, under_quota(burst=False))
    (said,) = watched.run(20, under_quota(burst=False, needs=2.0))
    assert said.startswith("fast:0 is slow")


def test_waits_for_memory_explain_what_they_are_a_part_of(watched):
    """Time that goes to reading again what the kernel took away shows as input, and is memory."""
    watched.run(20, lambda _, row: msgspec.structs.replace(row, memory_stall_seconds=0.0))

    def short_of_memory(at, row):
        row = slower(0, wait=0.1)(at, row)
        return msgspec.structs.replace(row, memory_stall_seconds=0.02 if at == 0 else 0.0)

    (said,) = watched.run(20, short_of_memory)
    assert said.endswith("(memory)")


def replace_throttle(row, seconds):
    """The row with a time that a quota has cost."""
    return msgspec.structs.replace(row, throttled_seconds=seconds)


def test_a_straggler_that_gets_worse_is_told_again(watched):
    """And not while it stays as it was told."""
    watched.run(20)
    assert len(watched.run(40, slower(0, compute=2.0))) == 1
    (said,) = watched.run(40, slower(0, compute=4.0))
    assert said.startswith("fast:0 is slow: 0.2")
    (said,) = watched.run(40, slower(0, wait=0.3))
    assert said.endswith("(input)")
    assert {report.since_step for report in watched.reports} == {20}


def test_what_all_suffer_is_not_learnt_as_usual(watched):
    """A hiccup of the whole system during a slow-down does not hide its cause afterwards."""
    watched.run(20)
    (said,) = watched.run(20, slower(0, compute=2.0))
    watched.run(3, lambda _index, row: row_of(row.local_batch_size, 10 * row.busy_seconds))
    assert watched.run(20, slower(0, compute=2.0)) == []
    assert said.endswith("(compute)")


def test_a_share_at_which_a_worker_was_never_seen_is_no_slow_down(watched):
    """Half of its step does not depend on the share: it was only guessed to be a tenth."""
    watched.run(20, overhead=0.05)
    assert watched.run(30, overhead=0.05, shares=(SHARE // 5,) * 3) == []


def test_a_noisy_worker_is_not_judged_by_its_lucky_steps(watched):
    """Steps that vary by half, as under a CPU quota, make no straggler, whatever the chance."""
    chance = random.Random(3)  # noqa: S311 - can be repeated

    def change(_index, row):
        return row_of(row.local_batch_size, row.busy_seconds * chance.lognormvariate(0, 0.5))

    assert watched.run(1000, change) == []
