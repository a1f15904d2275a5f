"""Real Horovod adds up what a device that is late has computed."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process

NUM_ROUNDS = 20


def test_a_device_and_a_host_add_up_by_horovod(run_workers):
    """Each sum is exact on both; only the device's tensors go through pinned memory."""
    device, host = run_workers("staged", 2, lost_in_round=None)
    assert (device["num_right"], host["num_right"]) == (NUM_ROUNDS, NUM_ROUNDS)
    assert (device["pinned"], host["pinned"]) == (3 * NUM_ROUNDS, 0)


def test_a_lost_worker_ends_the_wait_for_a_staged_sum(run_workers):
    """As that for any other sum: with what was summed before intact."""
    (device,) = run_workers("staged", 2, lost_in_round=5, codes=[0, 3])
    assert device["error"] == "Interrupted"
    assert device["num_right"] == 5
