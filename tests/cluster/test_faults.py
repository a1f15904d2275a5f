"""Machines that vanish from the network: no process dies, no connection ends, nothing is heard."""

from __future__ import annotations

import time

import pytest

from tests.kit.fault_job import FaultJob
from tests.kit.processes import is_running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_a_host_that_is_cut_off_is_replaced_and_ends_itself(virtual_cluster, tmp_path):
    """The driver's side goes on within seconds, not after Gloo's 30; the other side stops itself.

    A power loss looks the same from here.
    """
    cluster = virtual_cluster({"alpha": 100, "beta": 50})
    nodes = [
        cluster[name].node(slots=1, devices=[], directory=str(tmp_path))
        for name in ("alpha", "beta")
    ]
    job = FaultJob(
        tmp_path,
        [*nodes, {"name": "local", "slots": 1, "devices": []}],
        settings={"max_restarts": 0, "gloo_timeout_seconds": 60},
        epochs=40,
        num_samples=256,
        batch_size=64,
        step_seconds=0.05,
    )
    try:
        job.wait_for_step(10, 90)
        pid = job.pids()["beta-0"]
        cluster["beta"].run(["ip", "link", "set", "eth0", "down"])
        cut_at = time.monotonic()
        assert job.wait(120) == 0, job.console
        assert "beta:0 has been silent for" in job.console
        times = [line[0] for line in job.trace(("beta:0",)) if line[0] > cut_at + 1]
        assert times[0] - cut_at < 12, job.console
        while is_running(pid):
            assert time.monotonic() - cut_at < 60, "the worker that is cut off trains on"
            time.sleep(0.1)
        results = job.results()
        assert sorted(result["worker"] for result in results) == ["alpha:0", "local:0"]
        assert len({result["state"] for result in results}) == 1
        assert {tuple(result["times_used"]) for result in results} == {(40, 40)}
    finally:
        job.close()
        cluster["beta"].run(["ip", "link", "set", "eth0", "up"])
