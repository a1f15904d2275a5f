"""What becomes of processes that a test or a benchmark has started."""

from __future__ import annotations

import subprocess

import psutil


def is_running(pid: int) -> bool:
    """Whether a process is there and does not only wait to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a process to end, and kill it after so many seconds."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
