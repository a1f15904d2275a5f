"""Limits of the processor time of a control group, of either version."""

from __future__ import annotations

from pathlib import Path

PERIOD_MICROSECONDS = 10_000
"""Short: a throttled host must not look like a dead one."""


def set_quota(cgroup: Path, *, percent: int) -> None:
    """Give the processes of a control group so much of one core from now on.

    Args:
        cgroup: Its folder.
        percent: 1 and above; 200 is two cores.

    Raises:
        OSError: There are no quotas here.
    """
    quota = PERIOD_MICROSECONDS * percent // 100
    if (cgroup / "cpu.cfs_period_us").exists():
        (cgroup / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (cgroup / "cpu.cfs_quota_us").write_text(str(quota))
        return
    (cgroup.parent / "cgroup.subtree_control").write_text("+cpu")
    (cgroup / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
