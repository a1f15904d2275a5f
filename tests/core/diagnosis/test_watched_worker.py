"""Workers that lose all samples, get some again, leave and come back are judged rightly."""

from __future__ import annotations

import random

import pytest

from hetero_hvd.core.diagnosis.watched_worker import FEWEST_ROWS, VERDICT_ROWS
from hetero_hvd.messages import WorkerId

from .watched_tables import SHARE, WORKERS, recall, slower

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
    "as slow": (20, 12, [], 3.0, VERDICT_ROWS),
    "slower": (20, 12, [], 20.0, VERDICT_ROWS),
    "a little slow": (20, 12, [], 1.3, VERDICT_ROWS),
    "as it should be": (20, 12, [], 1.0, None),
    "with a slow first step": (20, 12, [10.0], 1.0, None),
    "with slow first steps": (20, 12, [10.0] * 4, 1.0, None),
    "slow after good steps": (20, 12, [1.0] * 3, 3.0, VERDICT_ROWS),
    "slow, never told of": (20, 0, [], 3.0, VERDICT_ROWS),
    "slow, hardly known": (8, 3, [], 3.0, FEWEST_ROWS),
    "as it should be, hardly known": (8, 3, [], 1.0, None),
}


@pytest.mark.parametrize("how", COMES_BACK)
@pytest.mark.parametrize("num_times", [1, 2])
def test_a_worker_that_comes_back_is_judged_anew(watched, how, num_times):
    """It was no member for a time, and its trouble may be over, or not.

    It takes eight rows if it was a member long enough for it to be known how much its steps vary.
    """
    num_well, num_slow, at_first, longer, named_by = COMES_BACK[how]
    watched.watch.begin(WORKERS, watched.step + 1)
    watched.run(num_well)
    watched.run(num_slow, slower(2, compute=3.0))
    for _ in range(num_times):
        watched.watch.begin(WORKERS[:2], watched.step + 1)
        watched.watch.begin(WORKERS, watched.step + 1)
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
    watched.watch.begin(WORKERS, watched.step + 1)
    watched.run(20)
    watched.run(12, slower(2, compute=4.0))
    watched.run(num_before, slower(2, compute=4.0), shares=smaller)
    watched.watch.begin(WORKERS[:2], watched.step + 1)
    watched.watch.begin(WORKERS, watched.step + 1)
    watched.reports.clear()
    watched.run(30, slower(2, compute=4.0), shares=smaller)
    (report,) = watched.reports
    assert report.speed_ratio == pytest.approx(1 / 4, rel=0.2)


@pytest.mark.parametrize("num_rows", range(1, 6))
def test_a_worker_that_comes_back_and_loses_all_samples_is_judged_by_three_rows(watched, num_rows):
    """The balancer needs no eight rows to take all samples from it, and then none follow."""
    watched.watch.begin(WORKERS, watched.step + 1)
    watched.run(20)
    watched.watch.begin(WORKERS[:2], watched.step + 1)
    watched.watch.begin(WORKERS, watched.step + 1)
    watched.run(num_rows, slower(2, compute=20.0))
    assert watched.reports == []
    watched.run(5, shares=(SHARE, SHARE, 0))
    assert [str(report.worker) for report in watched.reports] == ["slow:0"] * (num_rows >= 3)


@pytest.mark.parametrize("share", [SHARE, SHARE // 3, SHARE // 5])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_who_left_slow_is_slow_still_at_whatever_share(watched, share, noise):
    """Little is known of its best at a share that it never had while it was well."""
    random_times = random.Random(0)  # noqa: S311 - can be repeated

    def slow(at, row):
        longer = random_times.lognormvariate(0, noise)
        return slower(at, compute=(3.0 if at == 2 else 1.0) * longer)(at, row)

    watched.watch.begin(WORKERS)
    watched.run(20)
    watched.run(12, slow)
    watched.run(6, slow, shares=(SHARE, SHARE, share))
    watched.watch.begin(WORKERS[:2], watched.step + 1)
    assert watched.watch.fallen == {WORKERS[2]}
    watched.watch.begin(WORKERS, watched.step + 1)
    watched.reports.clear()
    watched.run(40, slow, shares=(SHARE, SHARE, share))
    (report,) = watched.reports
    assert (report.worker, report.cause) == (WORKERS[2], "compute")
    assert watched.watch.fallen == {WORKERS[2]}
    watched.run(20, shares=(SHARE, SHARE, share))
    assert not watched.reports[-1].is_slow, "it has become as much faster as it was slow"
    assert watched.watch.fallen == set()


@pytest.mark.parametrize("is_still_slow", [True, False])
def test_who_left_slow_has_fallen_until_it_is_found_well(watched, is_still_slow):
    """Its curve is not kept for other jobs meanwhile: that is not what it is."""
    watched.watch.begin(WORKERS)
    watched.run(20)
    watched.run(12, slower(2, compute=3.0))
    watched.watch.begin(WORKERS[:2], watched.step + 1)
    watched.watch.begin(WORKERS, watched.step + 1)
    has_fallen = []
    for _ in range(10):
        watched.run(1, slower(2, compute=3.0 if is_still_slow else 1.0))
        has_fallen.append(bool(watched.watch.fallen))
    assert has_fallen == [True] * 7 + [is_still_slow] * 3


@pytest.mark.parametrize("is_recalled", [True, False])
@pytest.mark.parametrize("num_times", [1, 2])
def test_a_worker_that_was_never_well_is_slow_since_it_joined(watched, is_recalled, num_times):
    """An earlier job, or nobody, knows what it can do."""
    if is_recalled:
        recall(watched)
    watched.watch.begin(WORKERS[:2])
    watched.step = 499
    since = []
    for _ in range(num_times):
        watched.watch.begin(WORKERS, watched.step + 1)
        since.append(watched.step + 1)
        watched.run(40, slower(2, compute=3.0))
        watched.watch.begin(WORKERS[:2], watched.step + 1)
    assert [report.since_step for report in watched.reports] == since * is_recalled


def test_a_process_that_begins_anew_is_judged_anew(watched):
    """If no membership was without it, too, as where all are needed."""
    watched.watch.begin(WORKERS)
    watched.run(20)
    assert len(watched.run(12, slower(2, compute=3.0))) == 1
    watched.watch.started(WORKERS[2])
    watched.watch.begin(WORKERS, watched.step + 1)
    back = watched.step + 1
    assert len(watched.run(30, slower(2, compute=3.0))) == 1
    assert watched.reports[-1].since_step == back


def test_where_shares_vary_no_samples_in_an_exchange_mean_nothing(watched):
    """Without waiting, a worker may have finished nothing meanwhile: more rows will come."""
    watched.watch.begin(WORKERS, shares_vary=True)
    watched.run(20)
    watched.run(3, slower(2, compute=3.0))
    assert watched.run(3, shares=(SHARE, SHARE, 0)) == []
    (said,) = watched.run(10, slower(2, compute=3.0))
    assert said.startswith("slow:0 is slow")


def test_who_is_slow_again_is_so_since_then(watched):
    """What was before it was well again does not count, though few good rows lie between."""
    watched.run(20)
    watched.run(12, slower(2, compute=3.0))
    assert watched.run(5) == ["slow:0 is as fast as it should be again"]
    again = watched.step + 1
    watched.run(12, slower(2, compute=3.0))
    assert [report.since_step for report in watched.reports if report.is_slow] == [20, again]


def test_a_membership_that_keeps_a_slow_worker_changes_nothing(watched):
    """Another one has joined or left: it is not told twice."""
    watched.watch.begin(WORKERS, watched.step + 1)
    watched.run(20)
    assert len(watched.run(12, slower(2, compute=3.0))) == 1
    watched.watch.begin((*WORKERS, WorkerId("more", 0)))
    assert watched.run(30, slower(2, compute=3.0)) == []
