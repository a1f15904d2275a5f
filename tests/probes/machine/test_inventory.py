"""The report of the hardware agrees with the tools that every Linux has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import UserError
from hetero_hvd.probes.machine import storage
from hetero_hvd.probes.machine.hardware import interfaces
from hetero_hvd.probes.machine.inventory import take_inventory
from hetero_hvd.probes.machine.route import route
from tests.fake_nvml.library import environment


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The inventory of this machine."""
    return take_inventory(tmp_path_factory.mktemp("data"))


def asked(*vector):
    """What a tool says, as JSON; the test is skipped where there is no such tool."""
    if shutil.which(vector[0]) is None:
        pytest.skip(f"no {vector[0]} here")
    done = subprocess.run(vector, check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"{vector[0]} cannot tell: {done.stderr.decode().strip()}")
    return json.loads(done.stdout)


def test_the_processor_is_that_of_lscpu(here):
    """Model, number of CPUs and NUMA nodes."""
    facts = {line["field"].rstrip(":"): line["data"] for line in asked("lscpu", "-J")["lscpu"]}
    assert here.processor.model == facts["Model name"]
    assert here.processor.num_cpus == int(facts["CPU(s)"])
    assert len(here.processor.numa_nodes) == int(facts.get("NUMA node(s)", 0))
    for node in here.processor.numa_nodes:
        assert sorted(_numbers(node.cpus)) == sorted(
            _numbers(facts[f"NUMA node{node.index} CPU(s)"])
        )


def _numbers(cpus):
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def test_simd_flags_are_the_kernels(here):
    """Each one stands in lscpu's flags, and a flag for vectors there stands here."""
    facts = {line["field"].rstrip(":"): line["data"] for line in asked("lscpu", "-J")["lscpu"]}
    flags = facts["Flags"].split()
    assert set(here.processor.simd) <= set(flags)
    assert ("avx2" in flags) == ("avx2" in here.processor.simd)


def test_affinity_is_reported_cpu_by_cpu():
    """A process that is pinned to one CPU says which, and has one core at most."""
    cpu = max(os.sched_getaffinity(0))
    ask = (
        f"import os; os.sched_setaffinity(0, [{cpu}]);"
        "from hetero_hvd.probes.machine.processor import probe_processor as p; print(p().affinity,"
        "p().allowed_cores <= 1)"
    )
    done = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    assert done.stdout == f"({cpu},) True\n"


def test_interfaces_are_those_of_ip():
    """Names, MTU and addresses; of those that nobody changes in the meantime."""
    before = {link["ifname"]: link for link in asked("ip", "-j", "addr")}
    found = {interface.name: interface for interface in interfaces()}
    after = {link["ifname"]: link for link in asked("ip", "-j", "addr")}
    steady = {name: link for name, link in before.items() if after.get(name) == link}
    assert "lo" in steady
    for name, link in steady.items():
        assert found[name].mtu_bytes == link["mtu"]
        assert set(found[name].addresses) == {entry["local"] for entry in link["addr_info"]}
    assert set(found) <= set(before) | set(after)


def test_the_route_is_that_of_ip(here):
    """Training uses the interface through which the kernel would reach the driver."""
    (way,) = asked("ip", "-j", "route", "get", "127.0.0.1")
    assert route(here.interfaces, "127.0.0.1").interface == way["dev"] == "lo"
    assert "127.0.0.1" in route(here.interfaces, "127.0.0.1").reason


def test_a_driver_without_an_address_is_one_line():
    """A name that nobody knows is a wrong input."""
    with pytest.raises(UserError, match=r"--towards no\.such\.name\.invalid: no address"):
        route(interfaces(), "no.such.name.invalid")


@pytest.mark.parametrize("path", ["/", "/proc", "/dev/shm"])  # noqa: S108 - a mount of every Linux
def test_storage_is_that_of_findmnt(path):
    """Mount, device and file system of the mount that holds the path."""
    mount = asked("findmnt", "-J", "-T", path)["filesystems"][-1]  # one above the other
    found = storage.probe_storage(storage.Path(path))
    assert (found.mount, found.file_system) == (mount["target"], mount["fstype"])
    assert found.device == mount["source"].partition("[")[0]  # without the folder of a bind mount
    usage = os.statvfs(path)
    assert found.total_bytes == usage.f_blocks * usage.f_frsize


def test_a_disks_kind_is_that_of_lsblk(here):
    """Solid state or rotating, as the kernel says."""
    disks = {
        disk["path"]: disk["rota"] for disk in asked("lsblk", "-J", "-l", "-O")["blockdevices"]
    }
    if here.storage.device not in disks:
        pytest.skip(f"{here.storage.device} is no disk")
    assert here.storage.kind == ("rotating" if disks[here.storage.device] else "solid state")


@pytest.mark.parametrize(
    ("file_system", "kind"),
    [("tmpfs", "memory"), ("nfs4", "network"), ("fuse.glusterfs", "network"), ("proc", "unknown")],
)
def test_kinds_by_file_system(file_system, kind):
    """Memory and network are known by the file system's name."""
    assert storage._kind(file_system, 0) == kind


def test_a_missing_path_is_one_line(capsys):
    """A wrong --path is told with exit code 2."""
    assert main(["hardware", "--path", "/no/such"]) == 2
    assert capsys.readouterr().err == "hetero-hvd: /no/such: No such file or directory\n"


def test_json_says_what_the_text_says(capsys, tmp_path):
    """Without a GPU too, which is a normal case, both work."""
    assert main(["hardware", "--json", "--path", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["storage"]["path"] == str(tmp_path)
    assert main(["hardware", "--path", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"{found['processor']['model']}: {found['processor']['num_cpus']} logical CPUs" in text
    for interface in found["interfaces"]:
        assert f"interface   {interface['name']}" in text


def test_two_unequal_gpus_in_the_text(fake_nvml):
    """The halved PCIe width, the throttling and what is not supported are seen at a glance."""
    done = subprocess.run(
        [sys.executable, "-m", "hetero_hvd", "hardware"],
        env=environment(fake_nvml),
        check=True,
        capture_output=True,
        text=True,
    )
    assert "held back power_cap, thermal" in done.stdout
    assert "generation 1 x8; at most 3 x16" in done.stdout
    assert "NVLink    not supported" in done.stdout
    assert "limit 215 W, as delivered 250 W" in done.stdout
