"""Runs by itself on another node than the driver, and requeues the job when that is lost.

`python -m hetero_hvd.slurm.watch_program JOB SECONDS`: the driver writes to its standard input
again and again, and `end` when the job is over. Standard library only.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

END = b"end"
MAX_BYTES = 4096


def is_lost(descriptor: int, silence_seconds: float) -> bool:
    """Wait for the end of the job, or for that of its driver; gives whether it was lost."""
    while select.select([descriptor], [], [], silence_seconds)[0]:
        data = os.read(descriptor, MAX_BYTES)
        if END in data:
            return False
        if not data:
            break
    return True


def main() -> int:
    """Watch; gives the exit code."""
    job_id, silence_seconds = sys.argv[1], float(sys.argv[2])
    if is_lost(sys.stdin.fileno(), silence_seconds):
        return subprocess.run(["scontrol", "requeue", job_id], check=False).returncode  # noqa: S607 - Slurm's own place
    return 0


if __name__ == "__main__":
    sys.exit(main())
