"""Files that are there as a whole, or as they were."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from hetero_hvd.whole_file import AS_THE_UMASK_HAS_IT, OWNER_ONLY, write_whole


@pytest.mark.parametrize("fails", [None, "write", "replace"])
def test_a_file_is_written_as_a_whole_or_left_as_it_was(tmp_path, monkeypatch, fails):
    """Whenever the disk takes no more: nothing half written stays beside it."""
    path = tmp_path / "kept.json"
    write_whole(path, b"before")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    if fails == "write":
        monkeypatch.setattr("builtins.open", full)
    elif fails == "replace":
        monkeypatch.setattr(type(path), "replace", full)
    if fails is None:
        write_whole(path, b"after")
    else:
        with pytest.raises(OSError, match="No space left"):
            write_whole(path, b"after")
    monkeypatch.undo()
    assert path.read_bytes() == (b"before" if fails else b"after")
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]


@pytest.mark.parametrize("mode", [OWNER_ONLY, AS_THE_UMASK_HAS_IT])
@pytest.mark.parametrize("before", ["nothing", "a file", "a link", "a process of its number"])
def test_whatever_was_there_a_file_is_what_was_written(tmp_path, mode, before):
    """What a link leads to stays as it was, and so does what another process may be writing.

    In two containers with one folder processes have the same numbers.
    """
    path, other = tmp_path / "whole", tmp_path / "other"
    other.write_bytes(b"of another")
    if before == "a file":
        path.write_bytes(b"much longer than what comes")
    elif before == "a link":
        path.symlink_to(other)
    elif before == "a process of its number":
        (tmp_path / f".whole.{os.getpid()}").hardlink_to(other)
    umask = os.umask(0o027)
    try:
        write_whole(path, b"short", mode=mode)
    finally:
        os.umask(umask)
    assert (path.is_symlink(), path.read_bytes()) == (False, b"short")
    assert stat.S_IMODE(path.stat().st_mode) == mode & ~0o027
    assert other.read_bytes() == b"of another"
    left = {each.name for each in tmp_path.iterdir()} - {f".whole.{os.getpid()}"}
    assert left == {"whole", "other"}
