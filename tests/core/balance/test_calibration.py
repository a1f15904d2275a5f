"""Workers of whom nothing is known measure themselves, and the first step is balanced."""

from statistics import mean

import numpy as np
import pytest

from hetero_hvd.core.balance.balancer_state import BalancerState
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.policies.registry import make_policy
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.simulation.scenario import Scenario
from hetero_hvd.core.simulation.simulation import Simulation, row_of
from hetero_hvd.messages import Calibrated, PassTiming, StepsTimed, WorkerId, WorkersJoined

CLUSTERS = {
    "a slow one of four": (1, 1, 1, 0.21),
    "a half and a quarter": (1, 0.5, 0.25),
    "down to a tenth": (1, 0.7, 0.3, 0.1),
    "one of twenty": (1, 0.05),
    "eight": (1, 0.9, 0.8, 0.6, 0.5, 0.3, 0.2, 0.1),
    "equal": (1, 1, 1, 1),
}
"""Speeds of the workers."""


def trained(speeds, seed, *, calibrates):
    """150 steps with nothing known before: share of the best plan's speed, of all and of five."""
    curves = tuple(
        StepTimeModel(overhead_seconds=0.01 / speed**0.5, seconds_per_sample=0.001 / speed)
        for speed in speeds
    )
    scenario = Scenario(
        curves=curves, global_batch_size=512, noise_ratio=0.05, can_calibrate=calibrates
    )
    policy = BalancerState(BalanceConfig(calibrate="auto"))
    simulation = Simulation(scenario, policy, np.random.default_rng(seed))
    simulation.run(150)
    taken, best = simulation.true_seconds_at, simulation.best_seconds_at
    all_steps = sum(best) / (sum(taken) + simulation.calibration_seconds)
    return all_steps, sum(best[:5]) / sum(taken[:5])


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_first_steps_are_balanced(cluster):
    """What the measurements cost is counted; where all are equal they are no gain, and cheap."""
    speeds = CLUSTERS[cluster]
    found = [trained(speeds, seed, calibrates=True) for seed in range(10)]
    before = [trained(speeds, seed, calibrates=False) for seed in range(10)]
    assert mean(first for _, first in found) > 0.85
    assert mean(whole for whole, _ in found) > 0.95
    if cluster != "equal":
        assert mean(whole for whole, _ in found) > mean(whole for whole, _ in before) + 0.02
    else:
        assert mean(whole for whole, _ in found) > mean(whole for whole, _ in before) - 0.015


WORKERS = tuple(WorkerId(name, 0) for name in ("alpha", "beta"))
KNOWN = SpeedProfile(
    model=StepTimeModel(overhead_seconds=0.0, seconds_per_sample=0.01), largest_share=32
)
ASKED = {
    "nothing is known": ({}, {}, {}, True),
    "one is known": ({}, {}, {WORKERS[0]: KNOWN}, True),
    "all are known": ({}, {}, dict.fromkeys(WORKERS, KNOWN), False),
    "it is off": ({"calibrate": "never"}, {}, {}, False),
    "balancing is off": ({"balance": False}, {}, {}, False),
    "a baseline is measured": ({"baseline_steps": 5}, {}, {}, False),
    "hints": ({"relative_speeds": {"alpha": 1.0, "beta": 0.5}}, {}, {}, False),
    "a hint for one": ({"relative_speeds": {"alpha": 1.0}}, {}, {}, True),
    "a worker cannot": ({}, {"can_calibrate": False}, {}, False),
    "shares vary": ({}, {"shares_vary": True}, {}, False),
    "shares are fixed": ({}, {"shares_fixed": True}, {}, False),
    "one worker": ({}, {"workers": WORKERS[:1], "capacities": (-1,)}, {}, False),
}
"""What the user says, how the members are, what is remembered, and whether they are asked."""


def joined(**changes):
    """A membership."""
    facts = {
        "rendezvous_id": 1,
        "workers": WORKERS,
        "applied_steps": 0,
        "global_batch_size": 64,
        "capacities": (-1, -1),
        "prefetch_steps": 0,
        "can_calibrate": True,
    }
    return WorkersJoined(**facts | changes)


@pytest.mark.parametrize("case", ASKED)
def test_who_is_asked(case):
    """Only where it tells something, and can be done."""
    settings, members, remembered, is_asked = ASKED[case]
    state = BalancerState(BalanceConfig(**{"calibrate": "auto"} | settings), remembered)
    (plan,) = state.handle(joined(**members), now_seconds=0.0)
    assert (plan.calibration_ratio > 0) == is_asked


NO_PASSES = "this way of training allows no passes before its steps"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("nothing is known", "0 of 2 workers were measured before"),
        ("one is known", "1 of 2 workers were measured before"),
        ("hints", "0 of 2 workers were measured before, of 2 the relative_speed is given"),
        ("a hint for one", "0 of 2 workers were measured before, of 1 the relative_speed is given"),
        ("all are known", "2 of 2 workers were measured before"),
        (
            "it is off",
            "0 of 2 workers were measured before; calibrate: auto can measure new ones first",
        ),
        ("a worker cannot", f"0 of 2 workers were measured before; {NO_PASSES}"),
        ("one worker", "0 of 1 workers were measured before"),
    ],
)
def test_what_the_first_plan_is_made_of_is_said(case, words):
    """Shares that follow from what the user says do not look as if nothing was known."""
    settings, members, remembered, _ = ASKED[case]
    state = BalancerState(BalanceConfig(**{"calibrate": "auto"} | settings), remembered)
    (plan,) = state.handle(joined(**members), now_seconds=0.0)
    assert plan.reason == f"start: {words}"


UNUSED = {
    "another rule": ({"rule": "static"}, {}, " with rule: static"),
    "another rule, balancing is off": ({"rule": "lbb", "balance": False}, {}, " with rule: lbb"),
    "balancing is off": ({"balance": False}, {}, " with balance: false"),
    "a baseline is measured": ({"baseline_steps": 5}, {}, " before step 5, by baseline_steps"),
    "shares vary": ({}, {"shares_vary": True}, " as shares follow no plan"),
    "nobody has asked": ({"calibrate": "never", "balance": False}, {}, None),
    "nobody has asked another rule": ({"calibrate": "never", "rule": "static"}, {}, None),
    "it has an effect": ({}, {}, None),
    "a baseline is over": ({"baseline_steps": 5}, {"applied_steps": 5}, None),
}
"""What the user says, how the members are, and why nobody is measured; None: nothing is said."""


@pytest.mark.parametrize("case", UNUSED)
def test_that_it_has_no_effect_is_said_once(case):
    """With the first shares of the run, not with those of a later membership."""
    settings, members, why = UNUSED[case]
    policy = make_policy(BalanceConfig(**{"calibrate": "auto"} | settings))
    (first,) = policy.handle(joined(**members), now_seconds=0.0)
    (second,) = policy.handle(joined(**members, rendezvous_id=2), now_seconds=1.0)
    said = f"; calibrate: auto has no effect{why}"
    assert first.reason.startswith("start")
    assert first.reason.endswith(said) == (why is not None)
    assert ("no effect" in first.reason, "no effect" in second.reason) == (why is not None, False)


def test_who_joins_after_the_baseline_is_measured():
    """What is said of it counts for the steps before."""
    policy = BalancerState(BalanceConfig(calibrate="auto", baseline_steps=5))
    found = [
        policy.handle(joined(rendezvous_id=number, applied_steps=steps), now_seconds=0.0)
        for number, steps in ((1, 0), (2, 4), (3, 5))
    ]
    assert [plan.calibration_ratio > 0 for (plan,) in found] == [False, False, True]


def told(plan_id, *seconds, rendezvous_id=1):
    """What the members have measured at 4 samples; None: nothing."""
    measured = tuple(() if each is None else (PassTiming(4, each),) for each in seconds)
    return Calibrated(rendezvous_id=rendezvous_id, plan_id=plan_id, measured=measured)


def test_where_nobody_could_be_measured_the_line_says_so():
    """A loss function may refuse so few samples."""
    state = BalancerState(BalanceConfig(calibrate="auto"))
    state.handle(joined(), now_seconds=0.0)
    (plan,) = state.handle(told(1, None, None), now_seconds=0.0)
    assert plan.reason == "start: passes before this step have measured nobody"


SECOND_PASSES = {
    "overhead, then samples": (((4, 0.08), (4, 0.2)), ((12, 0.16), (6, 0.28)), False),
    "as long as before": (((4, 0.08), (4, 0.2)), ((12, 0.08), (6, 0.2)), True),
    "as the first said": (((4, 0.08), (4, 0.2)), ((12, 0.24), (6, 0.3)), False),
}
"""Samples and seconds of both members' first passes, of their second ones, and whether a third is
wanted: shares that were wrong need one only where it is not known yet how times grow."""


@pytest.mark.parametrize("case", SECOND_PASSES)
def test_a_third_measurement_only_where_it_tells_something(case):
    """All wait for it."""
    *rounds, is_wanted = SECOND_PASSES[case]
    state = BalancerState(BalanceConfig(calibrate="auto"))
    state.handle(joined(global_batch_size=256), now_seconds=0.0)
    for plan_id, passes in enumerate(rounds, 1):
        measured = tuple((PassTiming(*each),) for each in passes)
        event = Calibrated(rendezvous_id=1, plan_id=plan_id, measured=measured)
        (plan,) = state.handle(event, now_seconds=0.0)
    assert (plan.calibration_ratio > 0) == is_wanted


def test_who_gets_no_share_is_not_asked_how_sure_it_is():
    """One of whom is known that it has no overhead, and that it is far too slow."""
    slow = SpeedProfile(
        model=StepTimeModel(overhead_seconds=0.0, seconds_per_sample=100.0), largest_share=32
    )
    state = BalancerState(BalanceConfig(calibrate="auto"), {WORKERS[0]: slow})
    state.handle(joined(), now_seconds=0.0)
    for plan_id, passes in enumerate([(4, 0.2), (8, 0.1), (16, 0.1), (32, 0.1)], 1):
        event = Calibrated(rendezvous_id=1, plan_id=plan_id, measured=((), (PassTiming(*passes),)))
        (plan,) = state.handle(event, now_seconds=0.0)
        assert plan.local_batch_sizes == (0, 64)
        if not plan.calibration_ratio:
            break
    assert not plan.calibration_ratio


def test_two_measurements_then_a_plan():
    """The second is at shares that follow from the first; what comes twice is ignored."""
    state = BalancerState(BalanceConfig(calibrate="auto"))
    (first,) = state.handle(joined(), now_seconds=0.0)
    assert first.local_batch_sizes == (32, 32)
    (second,) = state.handle(told(1, 0.04, 0.12), now_seconds=0.0)
    assert second.local_batch_sizes == (48, 16)
    assert second.calibration_ratio > first.calibration_ratio
    assert state.handle(told(1, 9.0, 0.1), now_seconds=0.0) == []
    assert state.handle(told(2, 9.0, 0.1, rendezvous_id=2), now_seconds=0.0) == []
    (third,) = state.handle(told(2, 0.04, 0.12), now_seconds=0.0)
    assert (third.plan_id, third.from_step, third.calibration_ratio) == (3, 0, 0.0)
    assert third.local_batch_sizes[0] > third.local_batch_sizes[1]
    assert state.handle(told(3, 0.04, 0.12), now_seconds=0.0) == []


@pytest.mark.parametrize("seconds", [(None, None), (0.1, 0.102), (None, 0.1)])
def test_shares_stay_even_where_nothing_else_is_known(seconds):
    """Nobody could measure, one could not, or the difference is noise."""
    state = BalancerState(BalanceConfig(calibrate="auto"))
    state.handle(joined(), now_seconds=0.0)
    for plan_id in (1, 2):
        (plan,) = state.handle(told(plan_id, *seconds), now_seconds=0.0)
    assert plan.local_batch_sizes == (32, 32)


def test_what_steps_have_told_of_a_worker_stands():
    """A joiner measures itself beside one whose steps are known: its short passes tell less."""
    state = BalancerState(BalanceConfig(calibrate="auto"))
    alone = {"workers": WORKERS[:1], "capacities": (-1,)}
    state.handle(joined(**alone), now_seconds=0.0)
    for step in range(1, 6):
        event = StepsTimed(
            rendezvous_id=1,
            step=step,
            epoch=0,
            loss=0.0,
            timings=(row_of(64, 0.64),),
            exchange_seconds=0.0,
        )
        state.handle(event, now_seconds=0.0)
    (plan,) = state.handle(joined(rendezvous_id=2, applied_steps=6), now_seconds=0.0)
    assert plan.calibration_ratio > 0
    before = state.models[WORKERS[0]]
    (plan,) = state.handle(told(1, 9.0, 0.12, rendezvous_id=2), now_seconds=0.0)
    assert state.models[WORKERS[0]] == before
    assert plan.local_batch_sizes[0] > 2 * plan.local_batch_sizes[1]
