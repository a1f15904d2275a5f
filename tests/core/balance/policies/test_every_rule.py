"""What each rule promises, and that everything that names rules knows all of them."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_hvd.config import JobConfig
from hetero_hvd.config.reference import reference
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.policies.registry import RULES, make_policy
from hetero_hvd.core.balance.settings import DEFAULT_RULE, BalanceConfig
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.simulation.scenario import Change, Scenario
from hetero_hvd.core.simulation.simulation import Simulation
from hetero_hvd.errors import ConfigError
from hetero_hvd.measure.simulate import POLICIES, policy_named
from hetero_hvd.messages import WorkerId, WorkersJoined

every_rule = pytest.mark.parametrize("name", RULES)


def scenario(affine, **facts):
    """Three devices, of which one gets slow, and one is lost and comes back."""
    changes = (
        Change(step=50, worker=0, time_ratio=3.0),
        Change(step=80, worker=1, time_ratio=float("inf")),
        Change(step=120, worker=1, time_ratio=1.0),
    )
    curves = tuple(affine(speed, 0.01) for speed in (1500, 1000, 300))
    return Scenario(curves=curves, global_batch_size=96, changes=changes, **facts)


@every_rule
def test_the_global_batch_is_divided_whatever_happens(affine, name):
    """No sample is lost or made, and none is negative."""
    policy = make_policy(BalanceConfig(rule=name))
    assert policy.plan is None
    run = Simulation(scenario(affine, noise_ratio=0.1), policy, np.random.default_rng(0))
    run.run(200)
    assert {sum(sizes) for sizes in run.sizes_at} == {96}
    assert min(min(sizes) for sizes in run.sizes_at) >= 0
    assert sum(policy.plan.local_batch_sizes) == 96


@every_rule
def test_it_can_be_asked_for(affine, name):
    """In nodes.yaml, whose page tells of it, and in a simulation."""
    assert JobConfig(rule=name).rule == name
    assert f"`{name}` {RULES[name].words}" in reference()
    simulated = "ours" if name == DEFAULT_RULE else name
    assert simulated in POLICIES
    assert type(policy_named(simulated, scenario(affine))) is type(
        make_policy(BalanceConfig(rule=name))
    )


@every_rule
def test_in_the_reproducible_mode_plans_are_whole_grains(affine, name):
    """Who does not keep to grains is refused there."""
    if not RULES[name].plans_in_grains:
        with pytest.raises(ConfigError, match="must be model: only that plans in whole grains"):
            JobConfig(rule=name, reproducible=True)
        return
    assert JobConfig(rule=name, reproducible=True).rule == name
    policy = make_policy(BalanceConfig(rule=name, grain=8))
    run = Simulation(scenario(affine, noise_ratio=0.1), policy, np.random.default_rng(0))
    run.run(200)
    assert not any(size % 8 for sizes in run.sizes_at for size in sizes)


def test_what_is_remembered_later_is_made_use_of():
    """The curves of earlier jobs are found once it is known who joins."""
    remembered, workers = {}, (WorkerId("alpha", 0), WorkerId("beta", 0))
    policy = make_policy(BalanceConfig(), remembered)
    for worker, seconds in zip(workers, (0.01, 0.03), strict=True):
        model = StepTimeModel(overhead_seconds=0.0, seconds_per_sample=seconds)
        remembered[worker] = SpeedProfile(model=model, largest_share=40)
    joined = WorkersJoined(
        rendezvous_id=1,
        workers=workers,
        applied_steps=0,
        global_batch_size=40,
        capacities=(-1, -1),
        prefetch_steps=0,
    )
    [plan] = policy.handle(joined, now_seconds=0.0)
    assert plan.local_batch_sizes == (30, 10)
