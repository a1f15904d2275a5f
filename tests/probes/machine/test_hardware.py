"""The probe tells what this process may use, not what the machine has."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from hetero_hvd.probes.kernel import control_groups
from hetero_hvd.probes.machine import hardware


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """A tree of control groups; give it the lines of /proc/self/cgroup and the files."""

    def lay_out(own, files):
        (tmp_path / "self").write_text("".join(f"{line}\n" for line in own))
        for name, text in files.items():
            path = tmp_path / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        monkeypatch.setattr(control_groups, "_CGROUPS", tmp_path / "tree")
        monkeypatch.setattr(control_groups, "_OWN_CGROUPS", tmp_path / "self")

    return lay_out


def test_affinity_bounds_the_cores():
    """A process pinned to one core has one core, whatever the machine has."""
    ask = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from hetero_hvd.probes.machine.hardware import allowed_cores; print(allowed_cores())"
    )
    done = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert float(done.stdout) <= 1.0


def test_version_1_quota_bounds_the_cores(cgroups):
    """The narrowest quota from the own control group upwards holds."""
    cgroups(
        ["3:cpu,cpuacct:/a/b", "2:memory:/"],
        {
            "cpu/a/cpu.cfs_quota_us": "20000",
            "cpu/a/cpu.cfs_period_us": "100000",
            "cpu/a/b/cpu.cfs_quota_us": "-1",
            "cpu/a/b/cpu.cfs_period_us": "100000",
        },
    )
    assert hardware.allowed_cores() == 0.2


@pytest.mark.parametrize(("line", "cores"), [("30000 100000", 0.3), ("max 100000", None)])
def test_version_2_quota_bounds_the_cores(cgroups, line, cores):
    """`cpu.max` holds; `max` is no bound."""
    cgroups(["0::/a"], {"a/cpu.max": line})
    assert hardware.allowed_cores() == (cores or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("own", "file", "text", "allowed"),
    [
        ("0::/a/b", "a/memory.max", "1048576", 1 << 20),
        ("0::/a/b", "a/memory.max", "max", None),
        ("4:memory:/a", "memory/a/memory.limit_in_bytes", "1048576", 1 << 20),
        ("4:memory:/a", "memory/a/memory.limit_in_bytes", "9223372036854771712", None),
    ],
)
def test_a_limit_bounds_the_memory(cgroups, own, file, text, allowed):
    """A control group's limit holds where it is below the machine's memory."""
    cgroups([own], {file: text})
    assert hardware.allowed_memory_bytes() == (allowed or psutil.virtual_memory().total)


def test_loopback_is_an_interface_that_reaches_nobody():
    """Every machine has loopback, and no other machine is behind it."""
    loopback = next(i for i in hardware.interfaces() if "127.0.0.1" in i.addresses)
    assert loopback.is_up
    assert not loopback.reaches_others


@pytest.mark.parametrize(
    ("addresses", "is_up", "reaches"),
    [
        (("10.0.0.1",), True, True),
        (("10.0.0.1",), False, False),
        (("fe80::1",), True, False),
        (("fe80::1", "fd00::1"), True, True),
        ((), True, False),
    ],
)
def test_an_address_of_more_than_the_link_reaches_others(addresses, is_up, reaches):
    """An interface reaches others if it is up and has an address that is not link-local."""
    interface = hardware.Interface(name="eth0", addresses=addresses, is_up=is_up)
    assert interface.reaches_others is reaches
