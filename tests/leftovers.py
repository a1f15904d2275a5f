"""Looks for what should be over: processes that still work in a folder, conditions not yet met."""

from __future__ import annotations

import time
from pathlib import Path


def processes_of(folder):
    """Pids of all processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue  # it has just ended
    return found


def wait_until(condition, seconds, what):
    """Wait for a condition that no event tells about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
