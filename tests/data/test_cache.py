"""The cache holds no more than it may, gives back what was put, and steps aside where it cannot."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from hetero_hvd.data import cache as cache_module
from hetero_hvd.data.cache import CHECK_BYTES, SUFFIX, Cache

PART = 1000
ENTRY = PART + CHECK_BYTES


def held(folder):
    """Bytes of all parts."""
    return sum(path.stat().st_size for path in folder.rglob(f"*{SUFFIX}"))


def content(number):
    """Of a part."""
    return bytes([number % 256]) * PART


def test_what_was_used_longest_ago_goes_first(tmp_path):
    """As soon as there is no room; what was used meanwhile stays."""
    cache = Cache(tmp_path, 10 * ENTRY)
    for number in range(9):
        cache.put(f"part {number}", content(number))
        time.sleep(0.002)  # file systems tell times by ticks of the kernel
    time.sleep(0.02)
    assert cache.get("part 0") == content(0)
    for number in range(9, 12):
        cache.put(f"part {number}", content(number))
        assert held(tmp_path) <= 10 * ENTRY
    assert cache.get("part 0") == content(0)
    assert cache.get("part 1") is None
    assert cache.get("part 11") == content(11)


WRITER = """
import sys
from pathlib import Path
from hetero_hvd.data.cache import Cache
cache = Cache(Path(sys.argv[1]), int(sys.argv[2]))
for number in range(300):
    key = f"{number * 7919 % 101}"
    found = cache.get(key)
    body = bytes([int(key)]) * 1000
    assert found in (None, body)
    cache.put(key, body)
"""


def test_processes_share_it_within_its_bound(tmp_path):
    """All of a node at once, one of which is killed: the bound holds, and nothing is torn."""
    limit = 30 * ENTRY
    vector = [sys.executable, "-c", WRITER, str(tmp_path), str(limit)]
    writers = [subprocess.Popen(vector) for _ in range(3)]
    most = 0
    while writers[0].poll() is None:
        with Cache(tmp_path)._locked():  # else one part could be counted beside its successor
            most = max(most, held(tmp_path))
        if most > limit / 2:
            writers[2].kill()
    assert [writer.wait() for writer in writers[:2]] == [0, 0]
    writers[2].wait()
    assert 0 < most <= limit
    assert held(tmp_path) <= limit
    found = [Cache(tmp_path, limit).get(str(number)) for number in range(101)]
    assert {body for body in found if body} <= {bytes([number]) * 1000 for number in range(101)}


def test_what_is_damaged_is_not_given(tmp_path, caplog):
    """Another byte, or a part: it is read from its source again, and kept anew."""
    cache = Cache(tmp_path, 100 * ENTRY)
    for spoil in (lambda old: old[:-1] + b"x", lambda old: old[:7], lambda _: b""):
        cache.put("a", content(1))
        (path,) = tmp_path.rglob(f"*{SUFFIX}")
        path.write_bytes(spoil(path.read_bytes()))
        assert cache.get("a") is None
        assert "is damaged" in caplog.text
        caplog.clear()
    cache.put("a", content(1))
    assert cache.get("a") == content(1)


@pytest.mark.parametrize("problem", ["full", "no folder"])
def test_where_it_cannot_be_written_it_steps_aside(tmp_path, monkeypatch, caplog, problem):
    """One line, however often something is put; what is there is not served half."""
    folder = tmp_path / "cache"
    if problem == "no folder":
        folder.write_text("a file")
    else:

        def replace(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(cache_module.Path, "replace", replace)
    cache = Cache(folder, 100 * ENTRY)
    for number in range(3):
        cache.put(str(number), content(number))
        assert cache.get(str(number)) is None
    assert len(caplog.records) == 1
    assert "this process keeps no data there any more" in caplog.text


HOLDER = """
import sys
from pathlib import Path
from hetero_hvd.data.cache import Cache
with Cache(Path(sys.argv[1]))._locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_who_holds_its_lock_and_does_not_go_on_stops_nobody(tmp_path, monkeypatch, caplog):
    """Within a bound, in one line; what is there is used, and who waited keeps no lock behind."""
    cache, other = Cache(tmp_path), Cache(tmp_path)
    cache.put("a", content(1))
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    holder.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(cache_module, "LOCK_SECONDS", 0.2)
    began_at = time.monotonic()
    for name in "bc":
        cache.put(name, content(2))
        assert cache.get(name) is None
    assert time.monotonic() - began_at < 5
    assert cache.get("a") == content(1)
    (record,) = caplog.records
    assert "another process has had its lock for 0.2 s and does not go on" in record.getMessage()
    holder.send_signal(signal.SIGCONT)
    monkeypatch.setattr(cache_module, "LOCK_SECONDS", 10.0)
    holder.communicate(timeout=20)
    other.put("b", content(2))
    assert other.get("b") == content(2)


def test_it_leaves_room_on_the_disk(tmp_path, monkeypatch):
    """At most half of what is free, counted with what it holds itself."""
    size = os.statvfs(tmp_path).f_frsize
    blocks = -(-8 * ENTRY // size)

    def free(_):
        left = blocks * size - held(tmp_path)
        return type("Free", (), {"f_bavail": left / size, "f_frsize": size})

    monkeypatch.setattr(cache_module.os, "statvfs", free)
    cache = Cache(tmp_path, 100 * ENTRY)
    for number in range(20):
        cache.put(str(number), content(number))
    assert ENTRY < held(tmp_path) <= blocks * size / 2


def test_none_is_kept_where_none_is_wanted(tmp_path):
    """With a bound of 0 there is no folder either; what is too large for all of it is not kept."""
    Cache(tmp_path / "none", 0).put("a", b"a")
    assert not (tmp_path / "none").exists()
    cache = Cache(tmp_path / "small", 100)
    cache.put("a", b"a" * 200)
    assert cache.get("a") is None
