"""What can go wrong with a virtual host at work: less processor time or memory, a slow link."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hetero_hvd.errors import JobError
from tests.kit.virtual_cluster import INTERFACE, VirtualHost

REMOVAL_SECONDS = 5.0
"""How long the kernel may take to let go of the processes that were in a control group."""


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


def _remove(group: Path) -> None:
    """Remove a control group as soon as the kernel has let go of those who have just left it."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    while group.is_dir():
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class MemoryGroup:
    """A control group of its own for a host's memory, so that it can be made small.

    Args:
        host: Whose processes, those to come too, it bounds.
    """

    def __init__(self, host: VirtualHost) -> None:
        top = Path("/sys/fs/cgroup")
        self._name = host.name
        if (top / "memory").is_dir():  # version 1: the kernel tells of pressure in version 2 alone
            name = f"{host.namespace}-memory"
            self._made = [top / "memory" / name, top / "unified" / name]
            self._limit = self._made[0] / "memory.limit_in_bytes"
        else:
            self._made = []
            (top / "cgroup.subtree_control").write_text("+memory")
            self._limit = host.cgroup / "memory.max"
        self.pressure = (self._made[-1] if self._made else host.cgroup) / "memory.pressure"
        for group in self._made:
            group.mkdir()
            for pid in (host.cgroup / "cgroup.procs").read_text().split():
                (group / "cgroup.procs").write_text(pid)

    def close(self) -> None:
        """Let its processes go."""
        for group in self._made:
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    (group.parent / "cgroup.procs").write_text(pid)
            _remove(group)

    @contextmanager
    def too_small(self, cache_bytes: int) -> Iterator[None]:
        """Leave no more for files than this while the block lasts.

        Raises:
            JobError: Nobody ever waited for memory, so nothing was injected.
        """
        before, waited = self._limit.read_text(), self._waited_microseconds()
        self._leave(cache_bytes)
        try:
            yield
        finally:
            self._limit.write_text("-1" if self._made else before)
        if self._waited_microseconds() == waited:
            raise JobError(f"{self._name} never waited for memory")

    def _leave(self, cache_bytes: int) -> None:
        """Beside what its processes hold now; the kernel refuses while files are being written.

        Raises:
            OSError: It has refused ten times.
        """
        for tries_left in reversed(range(10)):
            lines = (self._limit.parent / "memory.stat").read_text().splitlines()
            stat = dict(map(str.split, lines))
            kept = int(stat.get("total_rss", stat.get("anon", 0)))
            try:
                self._limit.write_text(str(kept + cache_bytes))
            except OSError:
                if not tries_left:
                    raise
                time.sleep(0.2)
            else:
                return

    def _waited_microseconds(self) -> int:
        return int(self.pressure.read_text().split("total=")[1].split()[0])
