"""A worker that the kernel kills for want of memory comes back, and does not die of it again."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from .conftest import Job, processes_of, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(120)]
SCRIPT = Path(__file__).with_name("train_wide.py")
MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 580 * 2**20
"""Holds a worker and about 400 of the script's samples, not 600."""


@pytest.fixture
def small_host(tmp_path):
    """(An interpreter whose processes share little memory, the folder of their control group)."""
    folder = MEMORY / f"hv-memory-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no control group for memory: {error}")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho $$ >{folder}/cgroup.procs\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    yield str(python), folder
    deadline = time.monotonic() + 10
    while folder.exists():  # the kernel lets go of it a moment after its last process has ended
        try:
            folder.rmdir()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def num_kills(folder):
    """By the kernel, in this control group."""
    return int(re.search(r"oom_kill (\d+)", (folder / "memory.oom_control").read_text())[1])


def test_a_worker_killed_by_the_kernel_returns_with_a_cap(small_host, tmp_path):
    """It dies of 600 samples at once, returns with 300, and none of its restarts is counted.

    Half of the batch is its share again in the end, in more pieces than one.
    """
    python, folder = small_host
    nodes = [
        {"name": "alpha", "slots": 1, "devices": []},
        {"name": "beta", "slots": 1, "devices": [], "python": python},
    ]
    (tmp_path / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    arguments = ("--max-restarts", "0", "--no-balance", "--progress-seconds", "0.1")
    job = Job(tmp_path, *arguments, command=(str(SCRIPT), "1000", "1200"))
    try:
        job.wait_for(r"2 workers train together")
        job.wait_for(r"beta:0 has no memory for 600 samples at once and goes on with 300 \(the k")
        job.wait_for(r"2 workers train together", 60)
        for _ in range(4):
            job.wait_for(r"step \d+  epoch .* beta:0 600 in")
        assert num_kills(folder) == 1
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
        assert job.summary()["workers"]["beta:0"]["exit_codes"][0] == 137
        assert num_kills(folder) == 1
    finally:
        job.close()
        wait_until(lambda: not processes_of(tmp_path), 8, "the end of all processes")
