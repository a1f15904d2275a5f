"""Stragglers are judged against their own best; a cause is named only where there is evidence."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from hetero_hvd.core.simulation.simulation import row_of

from .watched_tables import SHARE, recall, slower


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


NEVER_WELL = {  # how many times as long it computes, what it waits for data, what is told of it
    "its device is slow": ({"compute": 3.0}, "compute"),
    "its device is slow, and it waits a little": ({"compute": 3.0, "wait": 0.1}, "compute"),
    "it waits, which may be usual": ({"wait": 1.0}, "unknown"),
    "it may be both": ({"compute": 2.0, "wait": 0.5}, "unknown"),
}


@pytest.mark.parametrize("how", NEVER_WELL)
def test_the_cause_of_a_worker_that_was_never_well_here_is_told_if_it_can_be_nothing_else(
    watched, how
):
    """An earlier job knows how long its steps take, not what else they are made of."""
    change, cause = NEVER_WELL[how]
    recall(watched)
    (said,) = watched.run(20, slower(2, **change))
    assert said.endswith(f"({cause})")


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


@pytest.mark.parametrize("share", [2, 4, 6, 10, 20, SHARE])
@pytest.mark.parametrize("quota", [QUOTA, 0.6, 0.8])
def test_a_quota_that_is_cut_makes_a_straggler(watched, share, quota):
    """It gets a third of what it got; what it got was all that it should have, also in 2 ms."""
    shares = (share, SHARE, SHARE)
    watched.run(20, under_quota(burst=True, quota=quota), shares=shares)
    assert watched.run(40, under_quota(burst=False, quota=quota), shares=shares) == []
    (said,) = watched.run(20, under_quota(burst=False, quota=quota / 3), shares=shares)
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


SHARES_FALL = {  # how many times as long its steps take, and its share after three of them
    "a third": (3.0, SHARE // 3),
    "a fifth": (5.0, SHARE // 5),
    "a tenth": (10.0, SHARE // 10),
    "one sample": (40.0, 1),
    "none": (40.0, 0),
}


@pytest.mark.parametrize("case", SHARES_FALL)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_who_loses_a_part_of_its_samples_is_judged_by_what_it_did_with_them(watched, case, noise):
    """The more it loses, the less is known of what it can do with what is left."""
    longer, share = SHARES_FALL[case]
    chance = random.Random(1)  # noqa: S311 - can be repeated

    def slow(at, row):
        factor = longer if at == 2 else 1.0
        return slower(at, compute=factor * chance.lognormvariate(0, noise))(at, row)

    watched.run(30, lambda at, row: slower(at, compute=chance.lognormvariate(0, noise))(at, row))
    watched.run(3, slow)
    assert watched.reports == []
    watched.run(30, slow, shares=(SHARE, SHARE, share))
    first = watched.reports[0]
    assert (str(first.worker), first.is_slow, first.cause) == ("slow:0", True, "compute")
    assert first.speed_ratio == pytest.approx(1 / longer, rel=0.2)
    assert all(report.is_slow for report in watched.reports), "it is called well"


def test_a_share_that_falls_makes_no_healthy_worker_slow(watched):
    """Whatever the balancer does, and in the midst of a spike."""
    watched.run(30)
    for number, share in enumerate((30, 10, 50, 20, 5, 1, 50, 3)):
        watched.run(1, slower(2, compute=10.0 if number % 2 else 1.0), shares=(SHARE, SHARE, share))
        watched.run(4, shares=(SHARE, SHARE, share))
    assert watched.reports == []


def test_the_cause_is_what_others_do_not_lose_alike(watched):
    """Its device is slow; then something takes as long on all, which is nobody's fault."""
    watched.run(20)
    (said,) = watched.run(20, slower(0, compute=2.0))
    assert said.endswith("(compute)")

    def all_wait(at, row):
        busy = row.forward_seconds + row.backward_seconds
        return row_of(row.local_batch_size, busy * (2.0 if at == 0 else 1.0), data_wait_seconds=0.2)

    assert [said for said in watched.run(40, all_wait) if "input" in said] == []


@pytest.mark.parametrize("num_well", [3, 5, 8])
def test_it_is_well_since_its_first_step_that_was_well(watched, num_well):
    """That is told some rows later."""
    watched.run(20)
    watched.run(12, slower(2, compute=3.0))
    well = watched.step + 1
    watched.run(num_well)
    (report,) = [report for report in watched.reports if not report.is_slow] or [None]
    assert report is None or report.since_step == well
    assert (report is not None) == (num_well >= 5)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_nobody_is_well_again_by_rows_that_could_be_as_slow_as_before(watched, noise):
    """At a share of one sample, which it never had, ten are as little known as one."""
    for seed in range(10):
        shown = type(watched)()
        chance = random.Random(seed)  # noqa: S311 - can be repeated

        def change(at, row, factor=1.0, chance=chance):
            times = (factor if at == 2 else 1.0) * chance.lognormvariate(0, noise)
            return slower(at, compute=times)(at, row)

        def slow(at, row, change=change):
            return change(at, row, 3.0)

        for number, share, how in ((3, 16, change), (97, 11, change), (4, 11, slow), (7, 1, slow)):
            shown.run(number, how, shares=(SHARE, SHARE, share), overhead=0.0005)
        shown.run(40, slow, shares=(SHARE, SHARE, 4), overhead=0.0005)
        assert shown.reports
        assert all(report.is_slow for report in shown.reports), seed


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_end_of_an_epoch_takes_no_samples_away(watched, is_whole):
    """A burst of somebody else's is over in the very row that has fewer samples."""
    watched.run(30)
    watched.run(3, slower(2, compute=1.5))
    watched.run(1, shares=(SHARE // 2,) * 3, is_whole=is_whole)
    watched.run(30)
    assert bool(watched.reports) == is_whole


@pytest.mark.parametrize("tail", [SHARE, 1])
def test_who_recovers_in_two_steps_is_well_again(watched, tail):
    """At the share at which it was slow that shows, whatever the ends of epochs tell."""
    watched.run(20)
    watched.run(20, slower(2, compute=2.5))
    watched.run(20, slower(2, compute=1.35))
    for _ in range(8):
        watched.run(4)
        watched.run(1, shares=(SHARE, SHARE, tail), is_whole=tail == SHARE)
    assert [report.is_slow for report in watched.reports][-1:] == [False]


def test_a_noisy_worker_that_recovers_in_two_steps_is_well_again(watched):
    """Its own speed is known no better than what it was told of at last."""
    chance = random.Random(2)  # noqa: S311 - can be repeated

    def noisy(factor):
        return lambda at, row: slower(
            at, compute=(factor if at == 2 else 1.0) * chance.lognormvariate(0, 0.25)
        )(at, row)

    watched.run(20, noisy(1.0))
    watched.run(30, noisy(4.0))
    watched.run(40, noisy(1.5))
    watched.run(120, noisy(1.0))
    assert next(report.is_slow for report in watched.reports)
    assert not watched.reports[-1].is_slow
