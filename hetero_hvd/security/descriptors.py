"""How many file descriptors a process may have: each connection and each worker takes some."""

from __future__ import annotations

import resource
from contextlib import suppress

WANTED = 16_384


def raise_limit() -> None:
    """Take as many as the system lets us have without asking, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """How many there may be."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else min(soft, WANTED)
