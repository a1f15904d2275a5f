"""kill -9 of one worker under Elastic Horovod's own launcher, and under torchrun with restarts.

The Horovod here is our build, whose Gloo connections are closed at a fault; its launcher, its
rendezvous server and its elastic loop are as released. Each worker is a host of its own as far as
one machine has names for itself, as a dead worker costs its whole host.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.kit.checkout import variables

SCRIPT = Path(__file__).with_name("peer_script.py")
NUM_STEPS, FAULT_STEP, LIMIT_SECONDS = 80, 25, 120.0
LOCAL_NAMES = ("localhost", "127.0.0.1", socket.gethostname())


def _command(peer: str, folder: Path, num_workers: int) -> list[str]:
    script = [str(SCRIPT), peer, str(folder), str(NUM_STEPS), str(FAULT_STEP)]
    programs = Path(sys.executable).parent
    if peer == "ddp":
        launch = [str(programs / "torchrun"), "--standalone", "--max-restarts=3"]
        launch += ["--local-addr=127.0.0.1", "--monitor-interval=0.1"]
        return [*launch, f"--nproc-per-node={num_workers}", *script]
    hosts = folder / "hosts.sh"
    per_host = -(-num_workers // len(LOCAL_NAMES))
    lines = [f"echo {name}:{per_host}" for name in LOCAL_NAMES]
    hosts.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    hosts.chmod(0o755)
    launch = [str(programs / "horovodrun"), "--gloo", "-np", str(num_workers), "--min-np", "1"]
    launch += ["--max-np", str(num_workers), "--host-discovery-script", str(hosts)]
    return [*launch, "--network-interface", "lo", sys.executable, *script]


def kill(peer: str, folder: Path, num_workers: int) -> float:
    """Seconds from the kill to the next step applied that nobody had applied before.

    Args:
        peer: `horovod` or `ddp`.
        folder: An empty one.
        num_workers: At the start.

    Returns:
        The seconds; infinity if the job did not go on.
    """
    with (folder / "console.txt").open("wb") as output:
        process = subprocess.Popen(
            _command(peer, folder, num_workers),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables(OMP_NUM_THREADS="1"),
            start_new_session=True,
        )
        try:
            return _recovery_seconds(folder, process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def _recovery_seconds(folder: Path, process: subprocess.Popen[bytes]) -> float:
    deadline = time.monotonic() + LIMIT_SECONDS
    mark = folder / "fired-0"
    while time.monotonic() < deadline:
        if mark.exists() and (text := mark.read_text()):
            at_seconds = json.loads(text)["at_seconds"]
            steps = [
                json.loads(line)
                for file in folder.glob("trace-*.jsonl")
                for line in file.read_text().splitlines()
                if line.endswith("]")
            ]
            new = [s[0] for s in steps if s[0] > at_seconds and s[1] > FAULT_STEP + 1]
            if new:
                return float(min(new) - at_seconds)
        if process.poll() is not None:
            break
        time.sleep(0.05)
    return float("inf")
