"""What can go wrong with a virtual host while it works: less processor time, a slow link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hetero_hvd.bench.virtual_cluster import INTERFACE, VirtualHost
from hetero_hvd.errors import JobError


@contextmanager
def tighter_quota(host: VirtualHost, *, divisor: int) -> Iterator[None]:
    """Divide its CPU quota while the block lasts.

    Raises:
        JobError: The host was never held back, so nothing was injected.
    """
    file = host.cgroup / "cpu.cfs_quota_us"  # version 1 of control groups, else version 2
    file = file if file.exists() else host.cgroup / "cpu.max"
    before = file.read_text()
    microseconds, *period = before.split()
    file.write_text(" ".join([str(int(microseconds) // divisor), *period]))
    throttled = host.throttled_periods()
    try:
        yield
    finally:
        file.write_text(before)
    if host.throttled_periods() == throttled:
        raise JobError(f"{host.name} was never throttled")


@contextmanager
def slow_link(host: VirtualHost, *, rate: str) -> Iterator[None]:
    """Limit what it can send (tc's token bucket) while the block lasts.

    Args:
        host: Whose link.
        rate: As tc reads it, for example `8mbit`.

    Raises:
        JobError: Nothing had to wait, so nothing was injected.
    """
    bucket = ["tbf", "rate", rate, "burst", "16kb", "latency", "400ms"]
    host.run(["tc", "qdisc", "replace", "dev", INTERFACE, "root", *bucket])
    try:
        yield
        counted = host.run(["tc", "-s", "qdisc", "show", "dev", INTERFACE]).stdout
    finally:
        host.run(["tc", "qdisc", "del", "dev", INTERFACE, "root"])
    words = counted.replace(",", " ").split()
    if int(words[words.index("overlimits") + 1]) == 0:
        raise JobError(f"{host.name}'s link was never the limit")
