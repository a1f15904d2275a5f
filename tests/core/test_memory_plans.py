"""What the workers tell of their memory and micro-batches, and what the plans make of it."""

from __future__ import annotations

import msgspec
import pytest

from hetero_hvd.core.balance.balancer_state import BalanceConfig, BalancerState
from hetero_hvd.messages import BatchPlan, StepsTimed, WorkerId, WorkersJoined

WORKERS = tuple(WorkerId(name, 0) for name in ("alpha", "beta", "gamma"))
SAMPLE_SECONDS = (0.001, 0.002, 0.004)


def joined(**more):
    """A rendezvous of three."""
    return WorkersJoined(
        rendezvous_id=1, workers=WORKERS, applied_steps=0, global_batch_size=140,
        capacities=(-1,) * 3, prefetch_steps=0, **more,
    )  # fmt: skip


@pytest.fixture
def table(timing):
    """Make the table of a step at a plan's shares."""

    def make(plan, step, **more):
        rows = (
            msgspec.structs.replace(timing(size, 0.01 + size * seconds), **more)
            for size, seconds in zip(plan.local_batch_sizes, SAMPLE_SECONDS, strict=True)
        )
        return StepsTimed(
            rendezvous_id=1, step=step, epoch=0, loss=1.0, timings=tuple(rows), exchange_seconds=0.0
        )

    return make


@pytest.mark.parametrize(
    ("sizes", "shares"), [((80e9, 40e9, 20e9), (80, 40, 20)), ((80e9, 40e9, 0.0), (47, 47, 46))]
)
def test_the_memory_of_gpus_shapes_the_first_plan_where_no_speed_is_known(sizes, shares):
    """Unless a worker has no GPU: then its memory says nothing."""
    state = BalancerState(BalanceConfig())
    (plan,) = state.handle(joined(memory_bytes=sizes), now_seconds=0.0)
    assert plan.local_batch_sizes == shares


def test_a_worker_tells_the_size_of_its_micro_batches(table):
    """What each costs stays known; only their number has changed."""
    state = BalancerState(BalanceConfig(balance=False))
    (plan,) = state.handle(joined(), now_seconds=0.0)
    for step in range(20):
        state.handle(table(plan, step), now_seconds=step)
    before = state.models[WORKERS[0]]
    state.handle(table(plan, 20, micro_batch_size=20), now_seconds=20.0)
    after = state.models[WORKERS[0]]
    assert (before.micro_batch_size, after.micro_batch_size) == (0, 20)
    assert after.seconds_per_sample == pytest.approx(before.seconds_per_sample, rel=0.2)


@pytest.mark.parametrize("balance", [True, False])
def test_shares_are_multiples_of_what_the_script_never_divides(table, balance):
    """In the first plan and in those that follow from speeds."""
    state = BalancerState(BalanceConfig(balance=balance))
    found = state.handle(joined(undivided=20), now_seconds=0.0)
    for step in range(1, 9):
        found += state.handle(table(state.plan, step), now_seconds=step)
    shares = {plan.local_batch_sizes for plan in found if isinstance(plan, BatchPlan)}
    assert all(share % 20 == 0 for each in shares for share in each)
    assert len(shares) == 1 + balance
