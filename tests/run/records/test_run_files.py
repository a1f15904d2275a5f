"""A folder is one process's at a time."""

import errno
import fcntl
import os
import stat
import subprocess
import sys

import pytest

from hetero_hvd.run.records import run_files
from hetero_hvd.run.records.run_files import (
    LOCK,
    change_file,
    is_locked,
    lock_folder,
)
from tests.kit.checkout import variables


def test_who_comes_second_does_not_get_it(tmp_path):
    """Until the first one has given it back; the file stays."""
    assert not is_locked(tmp_path)
    first = lock_folder(tmp_path)
    assert lock_folder(tmp_path) is None
    assert is_locked(tmp_path)
    os.close(first)
    assert not is_locked(tmp_path)
    again = lock_folder(tmp_path)
    assert again is not None
    os.close(again)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_what_is_locked_is_a_file_that_is_open_for_writing(tmp_path, monkeypatch):
    """NFS has no lock of a folder, and none for one alone of what is open to be read."""
    seen = []

    def note(descriptor, kind):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        seen.append((kind, stat.S_ISREG(os.fstat(descriptor).st_mode), flags))

    monkeypatch.setattr(run_files.fcntl, "flock", note)
    os.close(lock_folder(tmp_path))
    assert seen == [(fcntl.LOCK_EX | fcntl.LOCK_NB, True, os.O_RDWR)]


def test_a_file_system_without_locks_is_nobodys(tmp_path, monkeypatch):
    """Who is there gets the folder."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(run_files.fcntl, "flock", refuse)
    os.close(lock_folder(tmp_path))
    assert not is_locked(tmp_path)


@pytest.mark.parametrize("kind", ["a link", "a folder", "no folder around it"])
def test_what_is_no_file_is_an_error(tmp_path, kind):
    """Nothing is followed; nobody has such a folder."""
    folder = tmp_path / "folder"
    if kind != "no folder around it":
        folder.mkdir()
    if kind == "a link":
        (folder / LOCK).symlink_to(tmp_path / "victim")
    elif kind == "a folder":
        (folder / LOCK).mkdir()
    with pytest.raises(OSError, match=r"symbolic links|Is a directory|No such file"):
        lock_folder(folder)
    assert not is_locked(folder)
    assert not (tmp_path / "victim").exists()


ADD_LINES = """
import sys
from pathlib import Path
from hetero_hvd.run.records.run_files import change_file
path, name, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for place in range(number):
    change_file(path, lambda before: before + f"{name} {place}\\n".encode())
"""


def test_no_change_of_a_file_is_lost_to_another_process(tmp_path):
    """Of four that change it again and again, at the same time."""
    path, number = tmp_path / "kept", 40
    python = [sys.executable, "-c", ADD_LINES, str(path)]
    others = [
        subprocess.Popen(
            [*python, name, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables(),
        )
        for name in "abcd"
    ]
    for each in others:
        assert each.stdout.readline() == "ready\n"
    for each in others:
        each.stdin.write("\n")
        each.stdin.flush()
    for each in others:
        each.communicate()
    assert [each.returncode for each in others] == [0] * 4
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(f"{name} {place}" for name in "abcd" for place in range(number))
    assert lines != sorted(lines), "they did not run at the same time"


def test_who_holds_a_file_for_too_long_holds_up_nobody(tmp_path):
    """Such as a process that was stopped; the file stays as it was."""
    path = tmp_path / "kept"
    change_file(path, lambda _: b"before")

    def meanwhile(before):
        with pytest.raises(OSError, match="another process is changing it"):
            change_file(path, lambda _: b"other", wait_seconds=0.05)
        return before + b", after"

    change_file(path, meanwhile)
    assert path.read_bytes() == b"before, after"
