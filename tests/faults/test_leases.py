"""Two jobs on one machine: no slot has two workers, and a dead job's slots are free again."""

from __future__ import annotations

import os
import re
import signal

from tests.kit.fault_job import FaultJob

LONG = {"epochs": 400, "step_seconds": 0.03}


def job_in(folder, nodes, **more):
    """A job in a folder of its own."""
    folder.mkdir()
    return FaultJob(folder, nodes, **more)


def test_jobs_do_not_share_slots(tmp_path):
    """Who has no slot ends in one line; who has one takes the other when its holder was killed."""
    first = job_in(tmp_path / "first", ["alpha", "beta"], **LONG)
    second = third = None
    try:
        first.wait_for_step(2, 120)
        second = job_in(
            tmp_path / "second", ["alpha", "beta"], settings={"device_wait_seconds": 0.5}
        )
        patient = {"num_workers": 2, "patient_from": 2, "patient_seconds": 1.0}
        third = job_in(tmp_path / "third", ["beta", "gamma"], epochs=8, **patient)
        assert second.wait() == 75
        lines = [line for line in second.console.splitlines() if "[alpha:0]" in line]
        holder = rf"alpha:0 of out \(process {first.process.pid} of .*\)"
        assert len(lines) == 1
        assert re.fullmatch(rf"\[alpha:0\] slot alpha:0 is in use: {holder} has it", lines[0])
        third.wait_for_step(1, 120)
        assert "beta:0: is tried again until it is free" in third.console
        os.killpg(first.process.pid, signal.SIGKILL)
        assert third.wait() == 0
        assert "2 workers train together" in third.console
    finally:
        for job in filter(None, (first, second, third)):
            job.close()
