"""The end of a process is told at once, however it ends, and nothing else is taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from hetero_hvd.probes.kernel import life_lock
from hetero_hvd.probes.kernel.life_lock import LIFE_LOCK_VARIABLE, give_life_lock, hold_inherited
from tests.kit.checkout import variables

HOLDER = """
import os, signal, subprocess, sys, threading
from hetero_hvd.probes.kernel.life_lock import LIFE_LOCK_VARIABLE, hold_inherited

def hold():
    print(hold_inherited(os.environ[LIFE_LOCK_VARIABLE]), flush=True)

%s
"""
ENDINGS = {
    "kill": "hold(); os.kill(os.getpid(), signal.SIGKILL)",
    "fault": "hold(); os.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "hold(); os.abort()",
    "at once": "hold(); os._exit(3)",
    "in order": "hold()",
    "error": "hold(); raise ValueError",
    "thread ends it": "hold(); threading.Timer(0, os._exit, (1,)).start(); signal.pause()",
    "another program": "hold(); os.execv(sys.executable, [sys.executable, '-c', ''])",
}
"""What the holder does after it has the lock; each is told."""

QUIET = {
    "not held": "print(False, flush=True)",
    "not by the main thread": "t = threading.Thread(target=hold); t.start(); t.join()",
}
"""Nobody has held the lock."""

CHILDREN = {
    "fork": "os.fork() or os._exit(0); os.wait()",
    "forked child is killed": "os.fork() or os.kill(os.getpid(), signal.SIGKILL); os.wait()",
    "program": "subprocess.run([sys.executable, '-c', ''], check=True)",
    "thread": "t = threading.Thread(target=lambda: None); t.start(); t.join()",
}
"""What ends while its holder lives."""


class Started:
    """A process that was given a lock, and when it was told to die."""

    def __init__(self, script):
        environment = dict(variables())
        given = give_life_lock(environment)
        self.told = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER % script],
            env=environment,
            pass_fds=given.descriptors,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        given.watch(self.told.set)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


@pytest.fixture(autouse=True)
def _look_often(monkeypatch):
    monkeypatch.setattr(life_lock, "POLL_SECONDS", 0.01)


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_told(ending):
    """Whether the watcher looks before that or after it."""
    with Started(ENDINGS[ending]) as started:
        assert started.process.stdout.readline() == "True\n"
        assert started.told.wait(10)


@pytest.mark.parametrize("case", QUIET)
def test_nothing_is_told_of_who_did_not_hold_it(case):
    """Its end is noticed as that of any process."""
    with Started(QUIET[case]) as started:
        assert started.process.stdout.readline() == "False\n"
        started.process.wait(10)
        assert not started.told.wait(0.2)


@pytest.mark.parametrize("case", CHILDREN)
def test_what_a_holder_starts_may_end(case):
    """The holder lives on; then it is killed, and that is told."""
    script = f"hold()\n{CHILDREN[case]}\nprint('lives', flush=True)\nsignal.pause()"
    with Started(script) as started:
        assert started.process.stdout.readline() == "True\n"
        assert started.process.stdout.readline() == "lives\n"
        assert not started.told.wait(0.2)
        started.process.kill()
        assert started.told.wait(10)


def test_it_is_told_before_the_memory_is_freed():
    """That takes long where there is much of it: the process is no zombie yet."""
    script = "held = bytearray(b'1') * (300 * 2**20)\nhold()\nsignal.pause()"

    def is_told_first():
        with Started(script) as started:
            assert started.process.stdout.readline() == "True\n"
            assert not started.told.wait(0.1)  # the watcher waits by now
            started.process.kill()
            assert started.told.wait(10)
            flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
            return os.waitid(os.P_PID, started.process.pid, flags) is None

    assert any(is_told_first() for _ in range(10))  # this process may wait for a core, too


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", "1e3", "99999", "9" * 30, ":", "1:", "file", "file:", "file:1:2", "pipe"],
)
def test_what_is_no_lock_is_none(tmp_path, text):
    """A program in between may have closed it, and its number be that of a file of the script."""
    path = tmp_path / "data"
    path.write_bytes(b"S" * 8192)
    read, write = os.pipe()
    names = {"file": os.open(path, os.O_RDWR), "pipe": read}
    name, _, rest = text.partition(":")
    assert not hold_inherited(f"{names.get(name, name)}:{rest}")
    assert not hold_inherited(str(names.get(name, name)))
    for descriptor in (*names.values(), write):
        os.close(descriptor)  # nobody else has
    assert path.read_bytes() == b"S" * 8192


def test_a_lock_whose_number_is_another_files_by_now(tmp_path):
    """What a file holds is not written over, and it stays open."""
    environment = {}
    given = give_life_lock(environment)
    (number,) = given.descriptors
    path = tmp_path / "data"
    path.write_bytes(b"S" * 8192)
    own = os.open(path, os.O_RDWR)
    os.dup2(own, number)
    assert not hold_inherited(environment[LIFE_LOCK_VARIABLE])
    for descriptor in (own, number):
        os.close(descriptor)
    assert path.read_bytes() == b"S" * 8192


@pytest.mark.parametrize("error", [OSError(38, "no such call"), AttributeError("memfd_create")])
def test_a_system_without_one(monkeypatch, error):
    """The process starts without."""

    def fail(_name):
        raise error

    monkeypatch.setattr(os, "memfd_create", fail)
    environment = {LIFE_LOCK_VARIABLE: "4:1:2"}  # that of this process itself
    given = give_life_lock(environment)
    assert (environment, list(given.descriptors)) == ({LIFE_LOCK_VARIABLE: ""}, [])
    given.watch(lambda: pytest.fail("nobody has died"))
