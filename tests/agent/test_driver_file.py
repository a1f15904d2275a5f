"""The file in which a driver says where it is."""

import asyncio
import logging
import os
import socket
import threading

import pytest

from hetero_hvd.agent import driver_file
from hetero_hvd.agent.driver_file import DriverFile, check_driver_file
from hetero_hvd.cli import main
from hetero_hvd.errors import UserError
from hetero_hvd.security.cluster_key import make_key


def a_socket(path):
    """One that nobody listens on any more."""
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


GOOD = "10.0.0.5:9389\n[fd00::2]:9389\n"
CASES = {
    "two addresses": (GOOD, ["10.0.0.5:9389", "[fd00::2]:9389"], 0),
    "a name": ("gpu_07.cluster:9389", ["gpu_07.cluster:9389"], 0),
    "nothing yet": (None, [], 0),
    "an empty file": ("", [], 0),
    "a line that is none": ("10.0.0.5:9389\nhere\n", ["10.0.0.5:9389"], 1),
    "no text": (b"\xff\xfe\n", [], 1),
    "too many": (
        "".join(f"10.0.0.{n}:1\n" for n in range(99)),
        [f"10.0.0.{n}:1" for n in range(8)],
        0,
    ),
    "a folder": (os.mkdir, [], 1),
    "a pipe": (os.mkfifo, [], 1),
    "a socket": (a_socket, [], 1),
    "a link to itself": (lambda path: path.symlink_to(path), [], 1),
}


def targets(file):
    """Whom the senders tell, in words."""
    return [str(sender._target) for sender in asyncio.run(file.senders())]


@pytest.mark.parametrize("case", CASES)
def test_what_is_in_the_file(tmp_path, caplog, case):
    """What is no address is said once, and not used; it never ends the agent."""
    content, expected, num_warnings = CASES[case]
    path = tmp_path / "driver.address"
    if callable(content):
        content(path)
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    file = DriverFile(path)
    with caplog.at_level(logging.WARNING):
        assert [targets(file), targets(file)] == [expected] * 2
    assert len(caplog.records) == num_warnings
    assert all(str(path) in record.message for record in caplog.records)
    if callable(content):  # at the start, that is a mistake
        with pytest.raises(UserError, match=f"^--driver-file: {path} cannot be read: .*; name a"):
            check_driver_file(path)
    else:
        check_driver_file(path)


def test_what_no_driver_can_write_ends_the_command(tmp_path, capsys):
    """One line, and exit code 2; a pipe keeps nobody."""
    make_key(tmp_path / "key")
    os.mkfifo(tmp_path / "pipe")
    words = ["--key-file", str(tmp_path / "key"), "--driver-file", str(tmp_path / "pipe")]
    assert main(["agent", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hetero-hvd: --driver-file: {tmp_path / 'pipe'} cannot be read: is no")


def test_the_next_driver_may_be_elsewhere(tmp_path):
    """A target that stays keeps its sender, which knows what it has complained about."""
    path = tmp_path / "driver.address"
    path.write_text(GOOD)
    file = DriverFile(path)
    first = asyncio.run(file.senders())
    path.write_text("10.0.0.6:1\n10.0.0.5:9389\n")
    assert targets(file) == ["10.0.0.6:1", "10.0.0.5:9389"]
    assert asyncio.run(file.senders())[1] is first[0]
    path.unlink()
    assert targets(file) == []


def test_a_file_system_that_hangs_keeps_nobody(tmp_path, monkeypatch):
    """What was read before counts; there is one question at a time, and its answer is taken."""
    path = tmp_path / "driver.address"
    path.write_text(GOOD)
    monkeypatch.setattr(driver_file, "ANSWER_SECONDS", 0.2)
    answers, gate = [], threading.Event()

    def hangs(*words):
        answers.append(words)
        gate.wait()
        return os.open(*words)

    async def act():
        file = DriverFile(path)
        before = await file.senders()
        path.write_text("10.0.0.6:1\n")
        monkeypatch.setattr(driver_file, "regular", hangs)
        during = [await file.senders() for _ in range(3)]
        num_asked = len(answers)
        gate.set()
        while [str(s._target) for s in await file.senders()] != ["10.0.0.6:1"]:
            pass
        return before, during, num_asked

    before, during, num_asked = asyncio.run(act())
    assert len(before) == 2
    assert during == [before] * 3
    assert num_asked == 1


def test_who_was_told_before_is_told_on_while_the_disk_has_errors(tmp_path, caplog):
    """A server that comes back after a while costs no node."""
    path = tmp_path / "driver.address"
    path.write_text(GOOD)
    file = DriverFile(path)
    before = targets(file)
    path.unlink()
    path.mkdir()
    assert [targets(file), targets(file)] == [before] * 2
    assert len(caplog.records) == 1
    path.rmdir()
    assert targets(file) == []
