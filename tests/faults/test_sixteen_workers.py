"""Sixteen real workers: they train, each with a share after its speed, and go on when one dies."""

import pytest

from tests.kit.fault_job import NODE_NAMES

from .conftest import assert_exact

NAMES = NODE_NAMES[:16]
SLOW, KILLED = NAMES[3:16:4], NAMES[6]
FAST_SECONDS, SLOW_SECONDS = 0.008, 0.024
"""For a sample."""


@pytest.mark.process
@pytest.mark.timeout(120)
def test_sixteen_workers_balance_and_survive_a_death(start):
    """Nothing is lost or repeated; who is three times as slow has the smaller share before it."""
    nodes = [
        {
            "name": name,
            "slots": 1,
            "devices": [],
            "emulate": {"seconds_per_sample": SLOW_SECONDS if name in SLOW else FAST_SECONDS},
        }
        for name in NAMES
    ]
    fault = {"worker": f"{KILLED}:0", "step": 12, "kind": "kill"}
    job = start(fault, nodes=nodes, epochs=5, step_seconds=0.0)
    assert job.wait() == 0, job.console
    assert_exact(job, epochs=5, workers={f"{name}:0" for name in NAMES if name != KILLED})
    summary = job.summary()
    last = {name: summary["workers"][f"{name}:0"]["shares"][-1][1] for name in NAMES}
    assert summary["memberships"] == 2
    assert max(last[name] for name in SLOW) < min(last[name] for name in set(NAMES) - set(SLOW))
