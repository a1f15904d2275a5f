"""The replay itself: what is charged, and that each policy does the same work."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_hvd.core.queue.queue_settings import QueueSettings
from hetero_hvd.core.simulation.queues.gavel_rates import GAVEL_KINDS, GAVEL_RATES
from hetero_hvd.core.simulation.queues.generated_trace import (
    TraceRecipe,
    eight_devices,
    generated_trace,
    mean_speeds,
)
from hetero_hvd.core.simulation.queues.queue_outcomes import mean_outcome, outcome_of
from hetero_hvd.core.simulation.queues.queue_policies import QUEUE_POLICIES
from hetero_hvd.core.simulation.queues.queue_replay import QueueReplay
from hetero_hvd.errors import InvariantError


class Scripted:
    """A policy that gives what it is told, from call to call.

    Args:
        placements: What each call answers; the last stays.
    """

    is_balanced = True
    pause_seconds = 10.0
    round_seconds = 100.0

    def __init__(self, *placements):
        self._placements = list(placements)

    def submitted(self, job, now_seconds):
        """Nothing to do."""

    def finished(self, job, now_seconds):
        """Nothing to do."""

    def place(self, jobs, now_seconds):
        """The next one."""
        del now_seconds
        placed = self._placements.pop(0) if len(self._placements) > 1 else self._placements[0]
        return {name: devices for name, devices in placed.items() if name in jobs}


def small_trace(**more):
    """One generated job."""
    return generated_trace(TraceRecipe(num_jobs=1, **more), np.random.default_rng(0))


def test_a_joiner_idles_and_the_others_pause():
    """One device, then two: 30 s of the joiner, 10 s of both, and the work is all done."""
    (job,) = trace = small_trace(hours=(1.0, 1.0))
    one, two = ("v100-0-0",), ("v100-0-0", "v100-0-1")
    policy = Scripted({"job00000": one}, {"job00000": two})
    replay = QueueReplay(trace, eight_devices(), policy, start_seconds=30.0)
    (outcome,) = replay.run()
    rate = job.request.rates["v100"]
    alone = rate * 70.0  # of the first 100 s, 30 s are the start
    then = rate * 20.0  # 10 s pause; until 30 s the joiner does nothing
    left = job.request.work - alone - then
    assert outcome.completion_seconds == pytest.approx(130.0 + left / (2 * rate))
    assert replay.totals.joining_seconds == pytest.approx(30.0 + 20.0)
    assert replay.totals.paused_seconds == pytest.approx(20.0)
    assert replay.totals.num_resizes == 1


def test_a_device_for_two_jobs_is_noticed():
    """As is a policy that starts nothing."""
    trace = generated_trace(TraceRecipe(num_jobs=2), np.random.default_rng(0))
    both = {job.request.job: ("k80-2-0",) for job in trace}
    with pytest.raises(InvariantError, match="two jobs"):
        QueueReplay(trace, eight_devices(), Scripted(both), start_seconds=0.0).run()
    idle = Scripted({})
    idle.round_seconds = float("inf")
    with pytest.raises(InvariantError, match="nothing happens"):
        QueueReplay(trace, eight_devices(), idle, start_seconds=0.0).run()


@pytest.mark.parametrize("name", QUEUE_POLICIES)
@pytest.mark.parametrize("has_communication", [False, True])
def test_every_policy_does_all_the_work(name, has_communication):
    """No job ends before the fastest set could have done it, or starts before it came."""
    recipe = TraceRecipe(num_jobs=25, has_communication=has_communication, mean_gap_seconds=600)
    trace = generated_trace(recipe, np.random.default_rng(1))
    devices = eight_devices()
    policy = QUEUE_POLICIES[name](devices, QueueSettings())
    replay = QueueReplay(trace, devices, policy, start_seconds=30.0)
    outcomes = {each.job: each for each in replay.run()}
    assert outcomes.keys() == {job.request.job for job in trace}
    for job in trace:
        found = outcomes[job.request.job]
        most = sum(map(job.rate_on, devices))
        assert found.wait_seconds >= 0
        assert found.completion_seconds >= job.request.work / most
    figures = outcome_of(replay)
    assert 0 < figures.fairness <= 1.0
    assert mean_outcome([figures, figures]) == figures


def test_a_trace_is_the_same_for_a_seed():
    """And what it holds is what its recipe says."""
    recipe = TraceRecipe(num_jobs=400, num_users=5)
    first, second = (generated_trace(recipe, np.random.default_rng(3)) for _ in range(2))
    assert first == second
    assert len({job.request.user for job in first}) == 5
    assert {job.num_devices for job in first} == {1, 2, 4}
    assert max(mean_speeds().values()) == 1.0
    assert all(len(rates) == len(GAVEL_KINDS) for rates, _ in GAVEL_RATES.values())
