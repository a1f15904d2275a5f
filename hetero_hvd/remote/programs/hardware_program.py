"""Runs on a node, by itself: says what that is made of, what it does, and who uses its GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

_ASK = """
import json, sys, time
from pathlib import Path
from hetero_hvd.messages import event_to_json
from hetero_hvd.probes.machine.inventory import take_inventory
from hetero_hvd.probes.sampling.node_sampler import NodeSampler
sampler = NodeSampler()
sampler.take()
inventory = take_inventory(Path(sys.argv[1]))
time.sleep(1)
sample = json.loads(event_to_json(sampler.take()))
print("\\n" + json.dumps({"inventory": inventory.as_dict(), "sample": sample}))
"""
"""Runs with the environment of a worker; the last line that it prints is the answer."""


def look(directory: str, environment: dict[str, str], limit_seconds: float) -> dict[str, Any]:
    """Say what is here.

    Args:
        directory: Where scripts run; the storage below it is told of.
        environment: Added to that of this process.
        limit_seconds: For all of it.
    """
    folder = os.path.expanduser(directory)  # noqa: PTH111 - of an unknown user it says nothing
    if not os.access(f"{folder}/.", os.X_OK):  # not there, no folder, or not for this user
        folder = "/"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK, folder],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"its hardware does not answer in {limit_seconds:g} s") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(f"hetero_hvd does not run there: {words[-1]}")
    lines = done.stdout.strip().splitlines() or [""]
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        raise OSError(f"hetero_hvd does not answer there: {lines[-1] or 'not a word'}") from None
    return found
