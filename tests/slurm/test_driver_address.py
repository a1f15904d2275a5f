"""Where a driver says that it is."""

import errno
import os
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from hetero_hvd.errors import JobError, TryAgainError
from hetero_hvd.slurm import driver_address
from hetero_hvd.slurm.driver_address import FILE, free_port, told_address

CASES = {
    "all addresses": (("10.0.0.5", "fd00::2"), None, ["10.0.0.5:9389", "[fd00::2]:9389"]),
    "the one that was given": (("10.0.0.5",), "gateway", ["gateway:9389"]),
    "no network": ((), None, ["127.0.0.1:9389"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_file_is_there_as_long_as_the_driver(tmp_path, monkeypatch, case):
    """An earlier driver's is replaced as a whole, and nothing else is left."""
    addresses, host, lines = CASES[case]
    monkeypatch.setattr(driver_address, "own_addresses", lambda: addresses)
    (tmp_path / FILE).write_text("10.9.9.9:1\n")
    with told_address(tmp_path, 9389, host) as told:
        assert told == lines
        assert (tmp_path / FILE).read_text().splitlines() == lines
        assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"10.0.0.9:9389\n", b"\xff", None])
def test_what_is_another_drivers_stays(tmp_path, content):
    """Whatever it is; where nothing is left, nothing happens."""
    with told_address(tmp_path, 9389, "10.0.0.5"):
        if content is None:
            (tmp_path / FILE).unlink()
        else:
            (tmp_path / FILE).write_bytes(content)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([content] if content else [])


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    """With what is wrong."""
    with (
        pytest.raises(JobError, match=f"{FILE}: cannot be written"),
        told_address(tmp_path / "no", 1),
    ):
        pass


def test_a_full_disk_may_pass(tmp_path, monkeypatch):
    """A missing right does not: see exit-codes.md."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Path, "replace", Mock(side_effect=error))
    with pytest.raises(TryAgainError), told_address(tmp_path, 1):
        pass


def test_a_free_port_can_be_listened_at():
    """For both kinds of addresses, as the driver does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("", free_port()))
