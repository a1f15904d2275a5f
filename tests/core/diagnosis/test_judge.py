"""The one judgement of a run follows its events and tells what changed, once."""

from __future__ import annotations

import math

import msgspec
import pytest

from hetero_hvd.core.diagnosis.episodes import MAX_EPISODES
from hetero_hvd.core.diagnosis.judge import RECENT_EXCHANGES, Diagnoser
from hetero_hvd.core.step_table import StepTables, with_tables
from hetero_hvd.messages import (
    RunEnded,
    RunStarted,
    SourceRead,
    SourcesRead,
    StallReported,
    StepsTimed,
    StragglerReported,
    WorkersJoined,
    WorkerStarted,
)
from tests.core.diagnosis.test_findings import ALPHA, BETA, row

INPUT = row(data=0.2)


def timed(step, *rows):
    """An exchange."""
    return StepsTimed(
        rendezvous_id=1, step=step, epoch=0, loss=1.0, timings=rows, exchange_seconds=0.0
    )


@pytest.fixture(name="run")
def running_judge():
    """Exchanges of ten steps each; gives back the news."""

    class Run:
        def __init__(self):
            self.judge = Diagnoser()
            self.tables = StepTables()
            self.join(ALPHA, BETA)

        def join(self, *workers, **options):
            joined = WorkersJoined(
                rendezvous_id=1,
                workers=workers,
                applied_steps=self.judge.step + 1,
                global_batch_size=16,
                capacities=(-1,) * len(workers),
                prefetch_steps=0,
                **options,
            )
            self.observe(joined)

        def observe(self, event):
            for _, observed in with_tables([(0.0, event)], self.tables):
                self.judge.observe(observed)

        def exchanges(self, count, *rows):
            news = []
            for _ in range(count):
                self.observe(timed(self.judge.step + 10, *rows))
                news += self.judge.news()
            return news

        def report(self, *, is_slow=True, cause="throttle", num_steps=20):
            report = StragglerReported(
                step=self.judge.step,
                worker=ALPHA,
                is_slow=is_slow,
                speed_ratio=0.5 if is_slow else 1.0,
                cause=cause if is_slow else None,
                since_step=self.judge.step + 1 - num_steps,
            )
            self.judge.observe(report)
            return self.judge.news()

    return Run()


def test_the_first_exchange_is_not_judged(run):
    """It contains the start of the membership."""
    run.exchanges(1, INPUT, INPUT)
    assert not any(found.is_complete for found in run.judge.findings())
    run.exchanges(1, row(), row())
    assert run.judge.findings()[0].kind == "compute"


def test_a_change_is_told_once_and_only_if_it_lasts(run):
    """Two looks in a row must see it; numbers that move are no news."""
    news = run.exchanges(4 * RECENT_EXCHANGES, row(), row())
    assert [found.kind for found in news] == ["compute", "imbalance"]
    assert run.exchanges(RECENT_EXCHANGES // 2, INPUT, INPUT) == []
    assert run.exchanges(10 * RECENT_EXCHANGES, row(), row()) == []
    (news,) = run.exchanges(10 * RECENT_EXCHANGES, INPUT, INPUT)
    assert news.kind == "input"


@pytest.mark.parametrize(("undivided", "is_problem"), [(1, True), (8, False)])
def test_pieces_that_are_never_split_are_known(run, undivided, is_problem):
    """They come with the membership."""
    run.join(ALPHA, BETA, undivided=undivided)
    run.exchanges(5, row(8, compute=0.15), row(8, compute=0.08, comm=0.07))
    assert run.judge.findings()[1].is_problem is is_problem


def test_another_plan_is_judged_by_itself(run):
    """What was measured at the shares before does not count any more."""
    run.exchanges(30, row(8, compute=0.2), row(8, compute=0.02, comm=0.19))
    assert run.judge.findings()[1].is_problem
    run.exchanges(1, row(2, compute=0.05), row(14, compute=0.05))
    assert not run.judge.findings()[1].is_problem


def test_what_a_straggler_cost_adds_up(run):
    """From its first step on, as long as it lasts; afterwards the sum stays."""
    slow, waiting = row(compute=0.18, data=0.0), row(compute=0.09, data=0.0, comm=0.1)
    run.exchanges(3, slow, waiting)
    (found,) = run.report()
    assert (found.worker, found.cause) == (ALPHA, "throttle")
    assert found.evidence["cost_seconds"] == pytest.approx(20 * 0.09)
    run.exchanges(2, slow, waiting)
    (found,) = run.report(is_slow=False, num_steps=0)
    assert found.is_past
    assert found.evidence["cost_seconds"] == pytest.approx(40 * 0.09)
    run.exchanges(2, row(), row())
    assert run.judge.findings()[0] == found


SINCE = {  # shares since it is slow, exchanges with each, and what is told of that
    "none any more": ([(8, 2), (0, 2)], "the others have all of its 8 samples now"),
    "fewer": ([(8, 2), (2, 2)], "compensated by a smaller share, 2 samples instead of 8"),
    "fewer, then none": ([(8, 1), (4, 1), (0, 2)], "the others have all of its 8 samples now"),
}


@pytest.mark.parametrize("case", SINCE)
def test_what_a_straggler_cost_before_it_was_told_of_counts(run, case):
    """The balancer may be sooner than the verdict, but what was lost before is lost."""
    shares, words = SINCE[case]
    run.exchanges(1, row(8), row(8))
    for share, number in shares:
        compute = 0.18 if share else 0.0
        others = row(16 - share, compute=0.09, data=0.0, comm=0.1)
        run.exchanges(number, row(share, compute=compute, data=0.0), others)
    (found,) = run.report(num_steps=40)
    cost = 0.09 * 10 * sum(number for share, number in shares if share)
    assert found.evidence["cost_seconds"] == pytest.approx(cost)
    assert words in found.words


@pytest.mark.parametrize("num_well", [1, 3, 6])
def test_nothing_is_charged_for_steps_in_which_it_was_well_again(run, num_well):
    """That it is well is told some exchanges later."""
    slow, waiting = row(compute=0.18, data=0.0), row(compute=0.09, data=0.0, comm=0.1)
    run.exchanges(3, slow, waiting)
    run.report()
    run.exchanges(2, slow, waiting)
    run.exchanges(num_well, row(), row())
    (found,) = run.report(is_slow=False, num_steps=10 * num_well)
    assert found.evidence["until_step"] == 50
    assert found.evidence["cost_seconds"] == pytest.approx(40 * 0.09)


def test_what_each_cause_has_cost_is_told_apart(run):
    """Its cause has changed while it lasted; one that was not known is only known better."""
    slow, waiting = row(compute=0.18, data=0.0), row(compute=0.09, data=0.0, comm=0.1)
    run.exchanges(3, slow, waiting)
    run.report(cause="unknown")
    run.report(cause="compute")
    run.exchanges(2, slow, waiting)
    run.report(cause="script")
    run.exchanges(1, slow, waiting)
    told = [found for found in run.judge.findings() if found.kind == "straggler"]
    assert [(f.cause, f.is_past, f.evidence["since_step"]) for f in told] == [
        ("script", False, 50),
        ("compute", True, 10),
    ]
    costs = [found.evidence["cost_seconds"] for found in told]
    assert costs == pytest.approx([10 * 0.09, 40 * 0.09])


def test_all_that_was_ever_slow_is_added_up(run):
    """Also what is too old to be kept one by one."""
    slow, waiting = row(compute=0.18, data=0.0), row(compute=0.09, data=0.0, comm=0.1)
    for _ in range(MAX_EPISODES + 10):
        run.exchanges(1, row(), row())
        run.exchanges(1, slow, waiting)
        run.report(num_steps=10)
        run.report(is_slow=False, num_steps=0)
    (found,) = [f for f in run.judge.findings(of_whole_run=True) if f.kind == "straggler"]
    assert "was slow 30 times from step 10 to 600" in found.words
    assert found.evidence["cost_seconds"] == pytest.approx(29 * 10 * 0.09, rel=0.1)


def test_a_straggler_whose_timings_were_missing_for_a_while_is_the_same_one(run):
    """It was never well since that step: it is told once, and what it cost is charged once."""
    slow, waiting = row(compute=0.18, data=0.0), row(compute=0.09, data=0.0, comm=0.1)
    run.exchanges(3, slow, waiting)
    report = StragglerReported(
        step=29, worker=ALPHA, is_slow=True, speed_ratio=0.5, cause="compute", since_step=10
    )
    missing = msgspec.structs.replace(
        report, is_slow=False, speed_ratio=math.nan, cause=None, since_step=30
    )
    run.judge.observe(report)
    assert len(run.judge.news()) == 1
    run.judge.observe(missing)
    run.judge.news()
    run.judge.observe(report)
    told = [found for found in run.judge.findings() if found.kind == "straggler"]
    assert [found.is_past for found in told] == [False]
    assert told[0].evidence["cost_seconds"] == pytest.approx(20 * 0.09)
    run.judge.news()
    news = run.exchanges(10, slow, waiting)
    assert [found for found in news if found.kind == "straggler"] == []


def slow_by(run, cause, *, since_step, is_slow=True):
    """A report of the newest step; not slow: its timings are missing."""
    report = StragglerReported(
        step=run.judge.step,
        worker=ALPHA,
        is_slow=is_slow,
        speed_ratio=0.5 if is_slow else math.nan,
        cause=cause if is_slow else None,
        since_step=since_step if is_slow else run.judge.step,
    )
    run.judge.observe(report)


def test_what_goes_on_after_missing_timings_is_what_was_told_last(run):
    """An earlier cause, which is over, stays what it was."""
    slow, waiting = row(compute=0.18, data=0.0), row(compute=0.09, data=0.0, comm=0.1)
    run.exchanges(3, slow, waiting)
    slow_by(run, "input", since_step=10)
    run.exchanges(3, slow, waiting)
    slow_by(run, "compute", since_step=10)
    run.exchanges(2, slow, waiting)
    slow_by(run, "compute", since_step=10, is_slow=False)
    run.exchanges(1, slow, waiting)
    slow_by(run, "compute", since_step=10)
    told = [found for found in run.judge.findings() if found.kind == "straggler"]
    assert [(found.cause, found.is_past) for found in told] == [
        ("compute", False),
        ("input", True),
    ]
    assert told[1].evidence["cost_seconds"] == pytest.approx(50 * 0.09)


@pytest.mark.parametrize("how", ["another start", "it left"])
def test_only_missing_timings_are_an_interruption(run, how):
    """A new start from the same checkpoint is slow since the same step, and is another time."""
    run.exchanges(3, row(), row())
    slow_by(run, "compute", since_step=10)
    slow_by(run, "compute", since_step=10, is_slow=False)
    if how == "another start":
        run.judge.observe(RunStarted(run_id="x", command=(), nodes=(), settings={}))
    else:
        run.join(BETA)
    run.join(ALPHA, BETA)
    run.exchanges(3, row(), row())
    slow_by(run, "compute", since_step=10)
    told = [found for found in run.judge.findings() if found.kind == "straggler"]
    assert [found.is_past for found in told] == [False, True]


@pytest.mark.parametrize("num_well", [10, 30])
def test_steps_in_which_it_was_well_are_not_charged_however_late_that_is_told(run, num_well):
    """One that is slow now and then is watched for long."""
    slow, waiting = row(compute=0.18, data=0.0), row(compute=0.09, data=0.0, comm=0.1)
    run.exchanges(3, slow, waiting)
    run.report()
    run.exchanges(num_well, row(), row())
    (found,) = run.report(is_slow=False, num_steps=10 * num_well)
    assert found.evidence["cost_seconds"] == pytest.approx(20 * 0.09)


def test_a_straggler_that_begins_anew_is_past(run):
    """All are needed, so that no membership was without it."""
    run.exchanges(3, row(), row())
    run.report()
    run.judge.observe(WorkerStarted(worker=ALPHA, host="alpha", num_restarts=1))
    run.join(ALPHA, BETA)
    (found,) = [found for found in run.judge.findings() if found.kind == "straggler"]
    assert found.is_past


def test_where_shares_vary_nobody_has_the_others_samples(run):
    """What a worker gets done in an exchange may be nothing."""
    run.join(ALPHA, BETA, shares_vary=True)
    run.exchanges(5, row(8), row(8))
    run.report(num_steps=30)
    run.exchanges(1, row(0, compute=0.0), row(8))
    (found,) = [found for found in run.judge.findings() if found.kind == "straggler"]
    assert "samples" not in found.words


def test_what_was_so_in_one_start_of_a_run_is_past_in_the_next(run):
    """A straggler, a stall; the run was resumed, perhaps on other machines."""
    run.exchanges(3, row(), row())
    run.report()
    run.judge.observe(StallReported(step=20, is_stalled=True, seconds=9.0))
    run.judge.observe(RunEnded(exit_code=1, reason="killed"))
    assert [found.kind for found in run.judge.findings()][:2] == ["stall", "straggler"]
    run.judge.observe(RunStarted(run_id="x", command=(), nodes=(), settings={}))
    run.join(ALPHA, BETA)
    run.exchanges(3, row(), row())
    assert next(found.kind for found in run.judge.findings() if not found.is_past) == "compute"
    (past,) = [found for found in run.judge.findings() if found.is_past]
    assert past.words.startswith("alpha:0 was slow")


def test_a_straggler_that_leaves_is_past(run):
    """It costs nothing any more."""
    run.exchanges(3, row(), row())
    run.report()
    run.join(BETA)
    assert run.judge.findings()[0].is_past


def test_another_cause_is_the_same_straggler(run):
    """One finding, told again."""
    run.exchanges(3, row(), row())
    run.report(cause="unknown")
    (found,) = run.report(cause="input")
    assert found.cause == "input"
    assert sum(f.kind == "straggler" for f in run.judge.findings()) == 1


def test_findings_are_plain_data(run):
    """They travel as messages do."""
    run.exchanges(3, row(), row())
    for found in run.judge.findings():
        plain = msgspec.to_builtins(found)
        assert msgspec.convert(plain, type(found)) == found


def test_the_small_batch_at_the_end_of_an_epoch_is_not_judged(run):
    """Its fixed costs weigh more: it says nothing about the batches before and after it."""
    run.exchanges(5, row(), row())
    before = run.judge.findings()
    run.exchanges(1, row(share=2, data=0.2), row(share=1, data=0.2))
    assert run.judge.findings() == before


def test_what_comes_and_goes_is_still_known_after_a_small_move(run):
    """A few samples more or less change nothing about what binds the run; a new plan does."""

    def share(size, seconds=0.0):
        of_share = row(size, compute=0.01 * size)
        step_seconds = of_share.step_seconds + seconds
        return msgspec.structs.replace(
            of_share, evaluation_seconds=seconds, step_seconds=step_seconds
        )

    run.exchanges(4, share(8), share(8))
    for _ in range(4):
        run.exchanges(1, share(8, 0.5), share(8, 0.5))
        run.exchanges(2, share(8), share(8))
    assert run.judge.findings()[0].kind == "evaluation"
    assert run.exchanges(3, share(7), share(9)) == []
    assert run.judge.findings()[0].kind == "evaluation"
    run.exchanges(3, share(2), share(14))
    assert run.judge.findings()[0].kind == "compute"


def test_where_there_are_no_plans_nothing_is_said_of_shares(run):
    """In wait-free rounds each worker takes what it can."""
    run.join(ALPHA, BETA, shares_vary=True)
    run.exchanges(12, row(), row(compute=0.3))
    kinds = {finding.kind for finding in run.judge.findings()}
    assert "imbalance" not in kinds
    assert kinds & {"compute", "memory"}


def test_a_run_that_waits_for_data_waits_for_a_source(run):
    """It is named where the input binds the run, and not where something else does."""
    run.observe(
        SourcesRead(
            worker=ALPHA,
            step=9,
            sources={
                "s3://b/train": SourceRead(wait_seconds=1.0, read_seconds=3, decode_seconds=1)
            },
        )
    )
    run.exchanges(9, INPUT, INPUT)
    (found,) = [found for found in run.judge.findings() if found.kind == "input"]
    assert "100% of that wait is for s3://b/train, of which decoding its samples takes 25%" in str(
        found
    )
    run.exchanges(30, row(), row())
    assert "s3://b/train" not in " ".join(map(str, run.judge.findings()))
