"""`BalancerState`: what follows from each event."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hetero_hvd.core.balance.balancer_state import BalanceConfig, BalancerState
from hetero_hvd.core.balance.hysteresis import Decision
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.planner import first_plan
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.errors import ConfigError, InfeasiblePlanError, InvariantError
from hetero_hvd.messages import BatchPlan, StepsTimed, WorkerId, WorkersJoined

A, B, C = (WorkerId(name, 0) for name in ("alpha", "beta", "gamma"))
SPEEDS = {A: 1000.0, B: 500.0, C: 250.0}


def joined(*workers, rendezvous_id=1, step=0, batch=140, capacities=None, prefetch=0, **more):
    """A rendezvous."""
    return WorkersJoined(
        **more,
        rendezvous_id=rendezvous_id,
        workers=workers,
        applied_steps=step,
        global_batch_size=batch,
        capacities=capacities or (-1,) * len(workers),
        prefetch_steps=prefetch,
    )


@pytest.fixture(name="table")
def table_maker(timing):
    """Make the table of a step at the plan's shares, from each worker's true speed."""

    def make(plan, step, *, rendezvous_id=None, speeds=SPEEDS, **options):
        return StepsTimed(
            rendezvous_id=rendezvous_id or plan.rendezvous_id,
            step=step,
            epoch=0,
            loss=math.nan,
            timings=tuple(
                timing(size, size / speeds[worker], **options)
                for worker, size in zip(plan.workers, plan.local_batch_sizes, strict=True)
            ),
            exchange_seconds=0.0,
        )

    return make


@pytest.fixture(name="settled")
def settled_state(table):
    """A state that has balanced alpha, beta and gamma, with its plan and step."""
    state = BalancerState(BalanceConfig())
    (plan,) = state.handle(joined(A, B, C), now_seconds=0.0)
    for step in range(60):
        state.handle(table(plan, step), now_seconds=float(step))
        if step >= state.plan.from_step:
            plan = state.plan
    return state, plan, 60


def plans(answers):
    """The plans among the answers."""
    return [answer for answer in answers if isinstance(answer, BatchPlan)]


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3)), min_size=1, unique=True),
    st.integers(1, 500),
    st.integers(0, 9),
    st.booleans(),
)
def test_each_rendezvous_gets_exactly_one_plan_for_it(members, batch, step, balance):
    """Even shares, at most one sample apart, when nothing is known; it holds from the next step."""
    workers = tuple(WorkerId(*member) for member in members)
    state = BalancerState(BalanceConfig(balance=balance))
    event = joined(*workers, rendezvous_id=7, step=step, batch=batch)
    (plan,) = state.handle(event, now_seconds=0.0)
    assert (plan.rendezvous_id, plan.plan_id, plan.from_step) == (7, 1, step)
    assert plan.workers == workers
    assert plan.global_batch_size == batch
    assert max(plan.local_batch_sizes) - min(plan.local_batch_sizes) <= 1
    assert plan.exchange_steps == 1


def test_hints_shape_the_first_plan():
    """Shares go as the relative speeds; a node without a hint counts as 1."""
    config = BalanceConfig(relative_speeds={"beta": 0.5, "gamma": 0.25})
    (plan,) = BalancerState(config).handle(joined(A, B, C), now_seconds=0.0)
    assert plan.local_batch_sizes == (80, 40, 20)


QUOTAS = {A: 0.7, B: 0.35, C: 0.18}


@pytest.mark.parametrize("reducing", [0.0, 0.0035, 0.007])
def test_under_quotas_the_reduction_is_part_of_a_workers_cost(timing, reducing):
    """Steps are as short as quotas allow, although a worker's own phases do not show it.

    Each step takes a worker processor time for its samples, and as much as any other for the
    reduction; the last one ends when its quota has given it all of that, the others have waited.
    """
    batch, seconds_per_sample = 5040, 45e-6
    state = BalancerState(BalanceConfig())
    (plan,) = state.handle(joined(A, B, C, batch=batch), now_seconds=0.0)

    def row(worker, size):
        own = size * seconds_per_sample
        given = (own + reducing) / QUOTAS[worker]
        return replace(timing(size, own / QUOTAS[worker]), quota_seconds=given)

    for step in range(60):
        rows = tuple(map(row, plan.workers, plan.local_batch_sizes))
        told = StepsTimed(
            rendezvous_id=1, step=step, epoch=0, loss=1.0, timings=rows, exchange_seconds=0.0
        )
        state.handle(told, now_seconds=float(step))
        if step >= state.plan.from_step:
            plan = state.plan
    best = (batch * seconds_per_sample + 3 * reducing) / sum(QUOTAS.values())
    found = max(
        row(worker, size).quota_seconds
        for worker, size in zip(plan.workers, plan.local_batch_sizes, strict=True)
    )
    assert found < 1.01 * best


def test_capacities_bound_every_plan(table):
    """A worker is never given more than it holds, even or balanced; too little is an error."""
    state = BalancerState(BalanceConfig())
    event = joined(A, B, C, capacities=(60, -1, -1))
    (plan,) = state.handle(event, now_seconds=0.0)
    for step in range(30):
        for plan in plans(state.handle(table(state.plan, step), now_seconds=0.0)):
            assert plan.local_batch_sizes[0] <= 60
            assert plan.global_batch_size == 140
    assert state.plan.local_batch_sizes[0] == 60
    with pytest.raises(InfeasiblePlanError, match="at most 130 samples"):
        state.handle(joined(A, B, rendezvous_id=2, capacities=(60, 70)), now_seconds=0.0)


def test_balanced_shares_follow_the_speeds_at_the_earliest_step(table):
    """The first table after the first step gives the plan; it names the earliest step for all."""
    state = BalancerState(BalanceConfig())
    (even,) = state.handle(joined(A, B, C, prefetch=2), now_seconds=0.0)
    assert state.handle(table(even, 0), now_seconds=0.0) == []
    decision, plan = state.handle(table(even, 1), now_seconds=0.0)
    assert isinstance(decision, Decision)
    assert decision.action == "move"
    assert decision.gain_ratio > 0.3
    assert (plan.plan_id, plan.from_step) == (2, 1 + 2 + 2)
    assert plan.local_batch_sizes[0] > even.local_batch_sizes[0] > plan.local_batch_sizes[2]


def test_the_settled_plan_is_the_optimum_and_the_models_are_true(settled):
    """At 1 : 0.5 : 0.25 without noise: 80, 40, 20, all busy for 80 ms."""
    state, plan, _ = settled
    assert plan.local_batch_sizes == (80, 40, 20)
    assert [model.seconds_per_sample for model in state.models.values()] == pytest.approx(
        [0.001, 0.002, 0.004], rel=0.1
    )


def test_tables_of_another_membership_or_repeated_ones_are_ignored(settled, table):
    """They neither teach nor decide."""
    state, plan, step = settled
    models = state.models
    wrong = dict.fromkeys(SPEEDS, 10.0)
    stale = table(plan, step, rendezvous_id=99, speeds=wrong)
    repeated = table(plan, step - 1, speeds=wrong)
    assert state.handle(stale, now_seconds=0.0) == []
    assert state.handle(repeated, now_seconds=0.0) == []
    assert state.models == models


def test_a_table_of_the_wrong_length_is_our_own_mistake(settled, table):
    """It is refused and names both lengths."""
    state, plan, step = settled
    event = table(plan, step)
    short = StepsTimed(
        rendezvous_id=1,
        step=step,
        epoch=0,
        loss=0.0,
        timings=event.timings[:2],
        exchange_seconds=0.0,
    )
    with pytest.raises(InvariantError, match="2 timings of 3 workers"):
        state.handle(short, now_seconds=0.0)


def test_a_returning_worker_starts_with_its_share(settled):
    """Gone in one membership, back in the next in another order: its curve is remembered."""
    state, _, step = settled
    (without,) = state.handle(joined(A, B, rendezvous_id=2, step=step), now_seconds=61.0)
    (back,) = state.handle(joined(C, A, B, rendezvous_id=3, step=step), now_seconds=62.0)
    assert without.local_batch_sizes == pytest.approx((93, 47), abs=2)
    assert back.local_batch_sizes == pytest.approx((20, 80, 40), abs=1)


def test_a_worker_that_an_earlier_job_found_slow_is_measured_at_once(table):
    """Something may have held it up then: it gets its share as soon as this job knows better."""
    slow = StepTimeModel(overhead_seconds=0.14, seconds_per_sample=0.001)
    well = {
        w: StepTimeModel(overhead_seconds=0.0, seconds_per_sample=1 / SPEEDS[w]) for w in (A, C)
    }
    remembered = {w: SpeedProfile(model=m, largest_share=80) for w, m in {**well, B: slow}.items()}
    state = BalancerState(BalanceConfig(), remembered)
    (plan,) = state.handle(joined(A, B, C), now_seconds=0.0)
    assert plan.local_batch_sizes[1] == 0
    for step in range(60):
        state.handle(table(plan, step), now_seconds=float(step) / 10)
        if step >= state.plan.from_step:
            plan = state.plan
    assert plan.local_batch_sizes == pytest.approx((80, 40, 20), abs=6)


def test_nobody_is_left_without_a_part_where_the_script_needs_all(table):
    """A worker that is not worth its part has lost it, until an evaluation asks for all."""
    speeds = {A: 1000.0, B: 500.0, C: 2.0}
    state = BalancerState(BalanceConfig())
    (plan,) = state.handle(joined(A, B, C), now_seconds=0.0)
    for step in range(60):
        if step == 30:
            assert plan.local_batch_sizes[2] == 0
            state.need_all()
        state.handle(table(plan, step, speeds=speeds), now_seconds=step / 10)
        if step >= state.plan.from_step:
            plan = state.plan
    assert plan.local_batch_sizes[2] == 1


@pytest.mark.parametrize("seed", range(4))
def test_the_small_last_batch_of_an_epoch_never_becomes_a_plan(timing, seed):
    """Whatever the noise, each plan is one for a whole batch, on devices that no line describes."""
    noise = np.random.default_rng(seed)
    state = BalancerState(BalanceConfig())
    (plan,) = state.handle(joined(A, B, C, batch=128), now_seconds=0.0)
    actions = set()

    def busy(worker, size):
        return math.ceil(size / 16) * 16 / SPEEDS[worker] * math.exp(noise.normal(0.0, 0.05))

    for step in range(600):
        sizes = (
            plan.local_batch_sizes
            if step % 4
            else [round(x * 0.23) for x in plan.local_batch_sizes]
        )
        rows = tuple(timing(n, busy(w, n)) for w, n in zip(plan.workers, sizes, strict=True))
        event = StepsTimed(
            rendezvous_id=1, step=step, epoch=0, loss=math.nan, timings=rows, exchange_seconds=0.0
        )
        for answer in state.handle(event, now_seconds=step / 10):
            actions |= {answer.action} if isinstance(answer, Decision) else set()
        assert sum(state.plan.local_batch_sizes) == 128
        if step >= state.plan.from_step:
            plan = state.plan
    assert "roll back" in actions


def test_a_newcomer_is_placed_among_the_measured_by_its_hint(table):
    """A hint of 0.5 beside a measured node of hint 1 means half its speed."""
    config = BalanceConfig(relative_speeds={"beta": 0.5})
    state = BalancerState(config)
    (plan,) = state.handle(joined(A), now_seconds=0.0)
    for step in range(5):
        state.handle(table(plan, step), now_seconds=0.0)
    (plan,) = state.handle(joined(A, B, rendezvous_id=2, step=5), now_seconds=0.0)
    assert plan.local_batch_sizes == pytest.approx((93, 47), abs=3)


def test_the_baseline_is_even_and_ends_on_time(table):
    """Even shares for exactly the asked steps, then the balanced plan, learnt meanwhile."""
    state = BalancerState(BalanceConfig(baseline_steps=20))
    (even,) = state.handle(joined(A, B, C), now_seconds=0.0)
    for step in range(18):
        answers = state.handle(table(even, step), now_seconds=0.0)
        assert plans(answers) == []
    (plan,) = plans(state.handle(table(even, 18), now_seconds=0.0))
    assert plan.from_step == 20
    assert plan.local_batch_sizes[0] > even.local_batch_sizes[0]
    (again,) = state.handle(joined(A, B, C, rendezvous_id=2, step=18), now_seconds=0.0)
    assert set(again.local_batch_sizes) == {46, 47}


def test_without_balancing_shares_stay_even_but_exchanges_still_become_rare(table):
    """`balance=False` measures and reports; the only plans are about the pace."""
    state = BalancerState(BalanceConfig(balance=False))
    (even,) = state.handle(joined(A, B, C), now_seconds=0.0)
    made = [
        plan
        for step in range(40)
        for plan in plans(state.handle(table(even, step, step_seconds=0.1), now_seconds=0.0))
    ]
    assert [plan.local_batch_sizes for plan in made] == [even.local_batch_sizes]
    assert (made[0].plan_id, made[0].exchange_steps) == (2, 10)
    assert state.models.keys() == {A, B, C}


def test_shares_that_the_script_fixes_are_told_and_never_changed(table):
    """They are known from the timings only; the smaller last batch of an epoch is none of them."""
    state = BalancerState(BalanceConfig())
    (plan,) = state.handle(joined(A, B, batch=2, shares_fixed=True), now_seconds=0.0)
    assert plan.local_batch_sizes == (1, 1)
    measured = [first_plan(joined(A, B), sizes, reason="") for sizes in ((8, 8), (8, 8), (3, 2))]
    found = [
        answer
        for step in range(1, 61)
        for answer in state.handle(table(measured[step % 3], step), now_seconds=float(step))
    ]
    sizes = [plan.local_batch_sizes for plan in plans(found)]
    assert set(sizes) == {(8, 8)}
    assert {answer.reason for answer in found if isinstance(answer, Decision)} == {
        "the script divides its data itself"
    }


def test_one_slow_read_of_data_does_not_cost_a_share_but_a_slow_disk_does(settled, table, timing):
    """Three rows of waiting for data change nothing; when it lasts, the share shrinks."""
    state, plan, step = settled

    def slow_disk(step):
        event = table(plan, step)
        rows = (timing(80, 0.08, wait=0.16), *event.timings[1:])
        return StepsTimed(
            rendezvous_id=1, step=step, epoch=0, loss=0.0, timings=rows, exchange_seconds=0.0
        )

    for _ in range(3):
        answers = state.handle(slow_disk(step), now_seconds=float(step))
        assert {p.local_batch_sizes for p in plans(answers)} <= {plan.local_batch_sizes}
        step += 1
    state.handle(table(plan, step), now_seconds=float(step))
    for _ in range(15):
        step += 1
        state.handle(slow_disk(step), now_seconds=float(step))
    assert state.plan.local_batch_sizes[0] < 60


def test_rows_that_were_not_measured_change_nothing(settled, table):
    """NaN everywhere: the plan stands and the models too."""
    state, plan, step = settled
    models = state.models
    for _ in range(10):
        answers = state.handle(
            table(plan, step, speeds=dict.fromkeys(SPEEDS, math.nan)), now_seconds=float(step)
        )
        assert {p.local_batch_sizes for p in plans(answers)} <= {plan.local_batch_sizes}
        step += 1
    assert state.models == models


def test_a_plan_that_never_came_into_force_is_sent_again(table):
    """Tables that keep contradicting it prompt a repetition under a new number."""
    state = BalancerState(BalanceConfig())
    (even,) = state.handle(joined(A, B, C), now_seconds=0.0)
    made = [p for s in range(80) for p in plans(state.handle(table(even, s), now_seconds=0.0))]
    repeated = [plan for plan in made if "sent again" in plan.reason]
    assert repeated
    assert repeated[0].local_batch_sizes == made[0].local_batch_sizes
    assert [plan.plan_id for plan in made] == list(range(2, 2 + len(made)))


def test_every_decision_says_why(settled, table):
    """Each table is answered by one decision with a reason and its inputs."""
    state, plan, step = settled
    decision, *_ = state.handle(table(plan, step), now_seconds=0.0)
    assert decision.action == "keep"
    assert "below 0.5%" in decision.reason
    assert decision.current_seconds == pytest.approx(0.08, rel=0.01)
    assert decision.threshold_ratio == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"baseline_steps": -1}, "baseline_steps=-1: must be >= 0"),
        ({"min_gain_ratio": 1.5}, "min_gain_ratio=1.5: must be from 0 to 1"),
        ({"exchange_seconds": 0.0}, "exchange_seconds=0.0: must be > 0 and finite"),
        ({"grain": 0}, "grain=0: must be >= 1"),
        ({"relative_speeds": {"b": 0.0}}, "relative_speeds[b]=0.0: must be > 0 and finite"),
        ({"grain": math.nan}, "grain=nan: must be >= 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, line):
    """One line for each, with what was found and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        BalanceConfig(**settings)
    assert caught.value.problems == (line,)
