"""Laws of `hetero_hvd.probes.kernel.device_lease`."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hetero_hvd.probes.kernel.device_lease import FOLDER_VARIABLE, NAME, take_lease
from tests.kit.checkout import variables
from tests.leftovers import wait_until

NOBODY = 65534
HOLD = """
import subprocess, sys, time
from hetero_hvd.probes.kernel.device_lease import take_lease
held = take_lease("slot alpha:0", sys.argv[1])
assert isinstance(held, int), held
child = subprocess.Popen(["sleep", "60"], pass_fds=[held])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the leases of this test are."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "leases"))
    return tmp_path / "leases"


def test_a_device_has_one_holder_until_all_its_processes_are_dead(folder):
    """Whoever comes meanwhile is told who has it; other devices are free."""
    command = [sys.executable, "-c", HOLD, "run one\x1b[2J"]
    with subprocess.Popen(command, env=variables(), stdout=subprocess.PIPE) as holder:
        child = int(holder.stdout.readline())
        told = take_lease("slot alpha:0", "run two")
        assert told == "run one\\x1b[2J"
        os.close(take_lease("slot alpha:1", "run two"))
        holder.kill()
        holder.wait()
        assert isinstance(take_lease("slot alpha:0", "run two"), str)  # its child could use it
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: isinstance(take_lease("slot alpha:0", "run two"), int), 5, "the lease")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}


TRAPS = {
    "a link in the place of the folder": lambda place, away: place.symlink_to(away),
    "a file there": lambda place, _away: place.write_text(""),
    "a link in the place of a lease": lambda place, away: (
        place.mkdir(),
        (place / "slot_alpha:0").symlink_to(away / "victim"),
    ),
    "a pipe there": lambda place, _away: (place.mkdir(), os.mkfifo(place / "slot_alpha:0")),
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS.keys())
def test_what_others_have_laid_there_is_not_followed(tmp_path, monkeypatch, trap):
    """It is told, and nothing is written elsewhere."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    away = tmp_path / "away"
    away.mkdir()
    trap(tmp_path / NAME, away)
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        take_lease("slot alpha:0", "run", [tmp_path])
    assert list(away.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
def test_users_share_the_leases():
    """Whoever has made the folder and the file."""
    places = [Path(tempfile.mkdtemp(dir="/tmp"))]  # pytest's folders are for one user alone
    places[0].chmod(0o1777)
    told, tells = os.pipe()
    try:
        os.close(take_lease("slot alpha:0", "run of root", places))
        if not (child := os.fork()):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            held = take_lease("slot alpha:0", "run of nobody", places)
            os.write(tells, str(held).encode())
            time.sleep(60)
        try:
            assert os.read(told, 100).isdigit()
            assert take_lease("slot alpha:0", "run of root", places) == "run of nobody"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(take_lease("slot alpha:0", "run of root", places))
    finally:
        shutil.rmtree(places[0])


def as_nobody(work):
    """What another user gets, as text."""
    told, tells = os.pipe()
    if not (child := os.fork()):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.write(tells, str(work()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    try:
        return os.read(told, 1000).decode()
    finally:
        os.close(told)
        os.close(tells)


LEFT = {0o644: "is free", 0o600: "is somebody's"}


@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
@pytest.mark.parametrize("mode", LEFT, ids=LEFT.values())
def test_a_file_that_its_maker_keeps_for_himself_frees_no_device(mode, monkeypatch):
    """As one is that a program left which was killed half-way, or was told to make so."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o1777)
    try:
        os.close(take_lease("slot alpha:0", "run of root", [place]))
        lease = place / NAME / "slot_alpha:0"
        lease.chmod(mode)
        found = as_nobody(lambda: take_lease("slot alpha:0", "run of nobody", [place]))
        assert (
            found.isdigit() if mode == 0o644 else found.endswith(f"made {lease} for himself alone")
        )
    finally:
        shutil.rmtree(place)


def test_a_folder_is_made_only_where_all_may(tmp_path, monkeypatch):
    """Else the first user of it decides where the others look."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir(0o755)
    shared.mkdir()
    shared.chmod(0o1777)
    before = os.umask(0o077)
    try:
        os.close(take_lease("slot alpha:0", "run", [own, shared]))
    finally:
        os.umask(before)
    assert list(own.iterdir()) == []
    assert stat.S_IMODE((shared / NAME).stat().st_mode) == 0o1777
    assert stat.S_IMODE((shared / NAME / "slot_alpha:0").stat().st_mode) == 0o666
