"""The folder that programs on one node share: whose it is, and what is read of it."""

import os
import stat

import pytest

from hetero_hvd.probes.sampling.shared_folder import (
    FOLDER_VARIABLE,
    MAX_FILE_BYTES,
    SharedFolder,
)

OTHER = 12345
is_root = os.getuid() == 0


def own(place):
    """The user's folder in a place."""
    return place / f"hetero_hvd-{os.getuid()}"


def of_another_user(place):
    """Somebody else was there first."""
    own(place).mkdir()
    os.chown(own(place), OTHER, OTHER)


def open_to_others(place):
    """Others may write into it."""
    own(place).mkdir(mode=0o700)
    own(place).chmod(0o777)


def a_link(place):
    """It leads somewhere else."""
    (place / "elsewhere").mkdir(mode=0o700)
    own(place).symlink_to(place / "elsewhere")


TAKEN = {
    "a file": lambda place: own(place).write_text(""),
    "a link": a_link,
    "open to others": open_to_others,
    "not there": lambda place: place.rmdir(),
    "another user's": pytest.param(
        of_another_user, marks=pytest.mark.skipif(not is_root, reason="needs root")
    ),
}


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
def test_a_place_that_is_not_ours_alone_is_not_used(tmp_path, take):
    """The next one is; without a next one, it is said why of each."""
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    take(first)
    folder = SharedFolder.of_this_node([first, second])
    assert folder.path.is_relative_to(own(second))
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    with pytest.raises(OSError, match=str(own(first))):
        SharedFolder.of_this_node([first])


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
def test_a_folder_that_is_named_and_cannot_be_used_is_one_line(tmp_path, take, monkeypatch):
    """It begins with the variable, and has the path and what to do; no number of the kernel's."""
    place = tmp_path / "1"
    place.mkdir()
    take(place)
    monkeypatch.setenv(FOLDER_VARIABLE, str(own(place)))
    with pytest.raises(OSError, match=rf"^{FOLDER_VARIABLE}: {own(place)}: .*; name one") as error:
        SharedFolder.of_this_node()
    assert "Errno" not in str(error.value)


def test_one_holds_the_lock(tmp_path):
    """Until it lets go; whoever holds one of a removed folder learns that."""
    one, other = SharedFolder(tmp_path / "x"), SharedFolder(tmp_path / "x")
    lock = one.try_to_lock()
    assert other.try_to_lock() is None
    assert one.is_locked_by(lock)
    (tmp_path / "x" / "lock").unlink()
    assert not one.is_locked_by(lock)
    os.close(lock)
    os.close(other.try_to_lock())


def too_long(path):
    """More than any sample."""
    path.write_bytes(bytes(MAX_FILE_BYTES + 1))


def other_owner(path):
    """Written by somebody else."""
    path.write_text("{}")
    os.chown(path, OTHER, OTHER)


def link_to_a_secret(path):
    """It leads to a file of ours."""
    (path.parent / "secret").write_text("secret")
    path.symlink_to(path.parent / "secret")


HOSTILE = {
    "a link": link_to_a_secret,
    "a pipe that nobody writes into": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "too long": too_long,
    "not there": lambda _: None,
    "another user's": pytest.param(
        other_owner, marks=pytest.mark.skipif(not is_root, reason="needs root")
    ),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_what_we_have_not_written_is_not_read(tmp_path, make):
    """And nobody waits for it."""
    folder = SharedFolder(tmp_path / "x")
    make(folder.path / "sample")
    assert folder.read("sample") == b""


def test_a_file_is_replaced_as_a_whole(tmp_path):
    """Each replacement is another version."""
    folder = SharedFolder(tmp_path / "x")
    versions = {folder.version("sample")}
    for content in (b"one", b"two"):
        folder.write("sample", content)
        versions.add(folder.version("sample"))
        assert folder.read("sample") == content
    assert len(versions) == 3
