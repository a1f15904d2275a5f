"""The balancer in a worker's own process, where there is no driver."""

from __future__ import annotations

from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.messages import WorkerId, WorkersJoined
from hetero_hvd.worker.session.plan_source import LocalPlanner


def test_each_trainer_of_a_script_has_its_own_grain():
    """That of the one before would leave the whole batch to one worker."""
    planner = LocalPlanner(BalanceConfig())
    found = []
    for number, grain in enumerate((8, 8, 1), start=1):
        planner.use_grain(grain)
        event = WorkersJoined(
            rendezvous_id=number,
            workers=(WorkerId("a", 0), WorkerId("b", 0)),
            applied_steps=0,
            global_batch_size=8,
            capacities=(-1, -1),
            prefetch_steps=0,
        )
        found.append(sorted(planner.joined(event).local_batch_sizes))
    assert found == [[0, 8], [0, 8], [4, 4]]
