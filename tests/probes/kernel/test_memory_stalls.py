"""Waits for memory are read from the kernel; what it does not tell is NaN, not zero."""

from __future__ import annotations

import math
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from hetero_hvd.probes.kernel import memory_stalls
from hetero_hvd.probes.kernel.memory_stalls import MemoryStallMeter
from tests.kit.host_faults import MemoryGroup
from tests.kit.virtual_cluster import missing_for_a_cluster

READER = """
import mmap, random, sys
from pathlib import Path
from hetero_hvd.probes.kernel.memory_stalls import MemoryStallMeter
path = Path(sys.argv[1])
input()
path.write_bytes(bytes(32 * 2**20))
with path.open("rb") as file:
    content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
meter = MemoryStallMeter()
def read():
    for _ in range(60):
        at = random.randrange(512) * 2**16
        sum(content[at : at + 2**16 : 4096])
    return meter.take()
read()
print(read(), flush=True)
input()
stalled = 0.0
for _ in range(20):
    stalled = stalled or read()
print(stalled, flush=True)
"""


def pressure(folder, microseconds):
    """What the kernel writes."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={microseconds}\n"
    (folder / "memory.pressure").write_text(text + "full avg10=0.00 avg60=0.00 total=0\n")


def test_the_smallest_group_counts(tmp_path, monkeypatch):
    """Its own group of version 2, else the machine; a kernel without pressure tells nothing."""
    (tmp_path / "own").write_text("5:memory:/elsewhere\n0::/job/worker\n")
    pressure(tmp_path / "unified" / "job" / "worker", 1000)
    pressure(tmp_path, 5)
    monkeypatch.setattr(memory_stalls, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory_stalls, "MOUNTS", (tmp_path, tmp_path / "unified"))
    monkeypatch.setattr(memory_stalls, "OF_MACHINE", tmp_path / "memory.pressure")
    meter = MemoryStallMeter()
    pressure(tmp_path / "unified" / "job" / "worker", 251_000)
    assert meter.take() == pytest.approx(0.25)
    assert meter.take() == 0
    monkeypatch.setattr(memory_stalls, "OWN_GROUPS", tmp_path / "none")
    meter = MemoryStallMeter()
    pressure(tmp_path, 2_000_005)
    assert meter.take() == pytest.approx(2)
    monkeypatch.setattr(memory_stalls, "OF_MACHINE", tmp_path / "none")
    assert math.isnan(MemoryStallMeter().take())


@pytest.mark.cluster
@pytest.mark.skipif(missing_for_a_cluster() is not None, reason="needs root and control groups")
def test_a_process_whose_files_no_longer_fit_waits_for_memory(tmp_path):
    """Nothing is counted while they do."""
    command = [sys.executable, "-c", READER, str(tmp_path / "samples")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as reader, ExitStack() as stack:
        stack.callback(reader.kill)
        (tmp_path / "cgroup.procs").write_text(str(reader.pid))
        name = f"hv-memory-{reader.pid}"
        host = SimpleNamespace(name="here", namespace=name, cgroup=tmp_path)
        group = MemoryGroup(host)
        stack.callback(group.close)

        def stalled_seconds():
            reader.stdin.write("\n")
            reader.stdin.flush()
            return float(reader.stdout.readline())

        assert stalled_seconds() == 0
        with group.too_small(8 * 2**20):
            assert stalled_seconds() > 0
