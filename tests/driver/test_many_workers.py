"""A real driver and workers that compute nothing: as many as no test could start as processes."""

import pytest

from tests.kit.scale.crowded_job import crowded_job
from tests.kit.scale.fake_training import Fault, Script

NUM_WORKERS, NUM_STEPS = 24, 120
FAULTS = (
    Fault(at_step=25, rank=3, kind="slow"),
    Fault(at_step=40, rank=0, kind="lost"),
    Fault(at_step=70, rank=5, kind="silent"),
)


@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_driver_balances_many_and_gets_over_those_that_are_slow_lost_or_silent():
    """Each that goes is replaced; no step is lost, and the loop never stands still for long."""
    script = Script(num_steps=NUM_STEPS, step_seconds=0.05, faults=FAULTS)
    run = crowded_job(NUM_WORKERS, script, slots_per_node=2)
    assert run.exit_code == 0, run.output
    assert [e["kind"] for e in run.events if e["event"] == "fault"] == ["slow", "lost", "silent"]
    sizes = [e["num_workers"] for e in run.events if e["event"] == "met"]
    assert (sizes[0], sizes.count(NUM_WORKERS - 1)) == (NUM_WORKERS, 2)
    assert run.summary["steps"] == NUM_STEPS
    assert run.summary["replicas_equal"]
    shares = {w: [share for _, share in r["shares"]] for w, r in run.summary["workers"].items()}
    assert len({found[-1] for found in shares.values()}) > NUM_WORKERS // 4
    assert "has been silent for" in run.output
