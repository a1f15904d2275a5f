"""The command `scripts/bench` itself."""

from __future__ import annotations

import signal
import subprocess
import time

import psutil

from tests.kit.checkout import CHECKOUT


def test_a_bench_that_is_ended_ends_its_job(tmp_path):
    """A time limit around it ends it by SIGTERM; a job that goes on would disturb what follows."""
    command = [CHECKOUT / "scripts/bench", "--quick", "--docs", tmp_path, "equal"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        process, deadline = psutil.Process(bench.pid), time.monotonic() + 60
        while len(jobs := process.children(recursive=True)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        bench.terminate()
        assert bench.wait(30) == 128 + signal.SIGTERM
    assert len(jobs) >= 2
    assert not psutil.wait_procs(jobs, timeout=5)[1]
