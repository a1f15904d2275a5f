"""What a writer of checkpoints has left is told from what one is still at."""

import os
import subprocess
import sys

import pytest

from hetero_hvd.worker.recovery.checkpoints.writers import OLD_SECONDS, is_left, new_writer

PLACE, PID, TOKEN = new_writer().split("-")


def dead_pid():
    """Of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


WRITERS = {
    "this process": (new_writer, False),
    "another one that lives": (lambda: f"{PLACE}-1-{TOKEN}", False),
    "one that has ended": (lambda: f"{PLACE}-{dead_pid()}-{TOKEN}", True),
    "one of another place": (lambda: f"{'0' * 12}-{dead_pid()}-{TOKEN}", False),
    "one of an earlier version": (lambda: str(dead_pid()), False),
    "nobody": (lambda: "", False),
}


@pytest.mark.parametrize("case", WRITERS)
def test_who_is_known_to_be_dead_has_left_it(case):
    """Of whom nothing is known has, when it is old."""
    make, expected = WRITERS[case]
    writer = make()
    assert is_left(writer, 0.0) == expected
    assert is_left(writer, OLD_SECONDS + 1)


def test_no_two_writers_have_one_name():
    """Not in one process either; a name has no dot, which ends it in a file's name."""
    assert str(os.getpid()) == PID
    assert len({new_writer() for _ in range(100)}) == 100
    assert "." not in new_writer()
