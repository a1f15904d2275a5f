"""What this process has used of the machine's memory, and what it could still get."""

import resource
import subprocess
import sys

import psutil
import pytest

from hetero_hvd.probes.kernel.control_groups import num_oom_kills
from hetero_hvd.probes.machine import memory

MIB = 2**20
LIMITED = """
import resource
from hetero_hvd.probes.machine.memory import host_memory
before = host_memory()
resource.setrlimit(resource.RLIMIT_AS, (int(open("/proc/self/statm").read().split()[0]) * {page}
    + 64 * 2**20, resource.RLIM_INFINITY))
after = host_memory()
print(before.limit_bytes - before.used_bytes > 65 * 2**20, after.limit_bytes - after.used_bytes)
"""


def test_a_peak_is_seen_after_its_end_and_forgotten_when_asked():
    """Until `reset_host_peak`; what is in use stays."""
    memory.reset_host_peak()
    before = memory.host_memory()
    block = bytearray(64 * MIB)
    del block
    after = memory.host_memory()
    assert after.peak_bytes - before.peak_bytes > 60 * MIB
    memory.reset_host_peak()
    assert memory.host_memory().peak_bytes < after.peak_bytes - 50 * MIB


def test_a_second_look_has_a_new_peak_and_the_old_limit():
    """What is in use may not be more than the limit."""
    memory.reset_host_peak()
    before = memory.host_memory()
    block = bytearray(64 * MIB)
    del block
    again = memory.host_memory_again(before)
    assert again.peak_bytes - before.peak_bytes > 60 * MIB
    assert again.limit_bytes == before.limit_bytes
    small = memory.MemoryUse(used_bytes=1, peak_bytes=1, limit_bytes=1)
    narrow = memory.host_memory_again(small)
    assert narrow.limit_bytes == narrow.used_bytes > MIB


def test_the_limit_is_no_more_than_the_machine_or_the_user_allows():
    """The user's number wins where it is smaller."""
    use = memory.host_memory()
    assert use.used_bytes <= use.limit_bytes <= psutil.virtual_memory().total
    assert memory.host_memory(123 * MIB).limit_bytes == 123 * MIB
    tight = memory.host_memory(MIB)  # less than is in use
    assert memory.host_memory_again(tight, MIB).limit_bytes == tight.limit_bytes == MIB


def test_an_address_space_limit_counts():
    """With 64 MiB left under RLIMIT_AS, 64 MiB is all that this process can still get."""
    code = LIMITED.format(page=resource.getpagesize())
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    was_more, room = run.stdout.split()
    assert was_more == "True"
    assert int(room) == pytest.approx(64 * MIB, abs=2 * MIB)


def test_the_kernels_count_of_kills_is_found():
    """It is a number that never falls."""
    first = num_oom_kills()
    assert 0 <= first <= num_oom_kills()
