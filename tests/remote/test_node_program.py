"""Orders and answers of a program on a node, whatever its shell and its interpreter do."""

import sys
import time

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.errors import NodeError
from hetero_hvd.remote.node_program import NodeProgram

HERE = NodeConfig(name="here")


def open_program(*interpreters, fits=""):
    """The program that looks at a node, on this machine."""
    return NodeProgram(HERE, "examination_program", interpreters=interpreters, fits=fits)


def interpreter(folder, text):
    """A program in the place of Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_several_orders_are_answered_in_turn():
    """By one process."""
    with open_program(sys.executable) as program:
        first, second = (program.ask("clock", seconds=20) for _ in range(2))
    assert second - first < 5


def test_what_a_login_says_is_not_an_answer(tmp_path):
    """Lines of a profile, JSON too, and halves of lines."""
    banner = 'echo "welcome"; echo \'{"hello": 1}\'; echo {}; echo 7; printf "no end of line"'
    python = interpreter(tmp_path, f'{banner}; exec {sys.executable} "$@"')
    with open_program(python) as program:
        assert abs(program.ask("clock", seconds=20) - time.time()) < 20


def test_the_first_that_fits_is_taken(tmp_path):
    """One that is not there, or fails the test, is not."""
    other = interpreter(tmp_path, "exit 1")
    order = {"directory": ".", "script": None, "paths": [], "environment": {}, "limit_seconds": 9}
    with open_program("/no/python", other, sys.executable, fits="import json") as program:
        assert program.ask("look", order, seconds=30)["interpreter"] == sys.executable


BROKEN = {
    "none fits": ("exit 1", "no Python that fits; found: none at all"),
    "dies": ('[ "$2" = "" ] && exit 0; echo went wrong >&2; exit 3', "went wrong"),
    "hangs": ('[ "$2" = "" ] && exit 0; exec sleep 60', "no answer in 0.5 s"),
    "ends without a word": ('[ "$2" = "" ] && exit 0; exit 5', "exited with code 5"),
    "loses its beginning": (
        f'[ "$2" = "" ] && exit 0; read line; exec {sys.executable} "$@"',
        "its login shell reads what is meant for a program of ours",
    ),
    "is killed": ('[ "$2" = "" ] && exit 0; kill -9 $$', "was ended by SIGKILL"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_program_that_does_not_answer_is_one_line(tmp_path, case):
    """In time, and with what it has said."""
    text, what = BROKEN[case]
    python = interpreter(tmp_path, text)
    with open_program(python) as program, pytest.raises(NodeError) as caught:
        program.ask("clock", seconds=0.5)
    assert caught.value.what.strip() == what


def test_an_error_of_the_program_is_told_and_ends_it():
    """What follows in its input is not taken for orders."""
    with open_program(sys.executable) as program:
        with pytest.raises(NodeError, match="missing"):
            program.ask("reach", {}, seconds=20)
        with pytest.raises(NodeError):
            program.ask("clock", seconds=20)


def test_what_cannot_be_sent_is_told_at_once():
    """A reason of this machine's is not taken for the end of the program."""

    def payload(_stream):
        raise PermissionError("no reading here")

    with open_program(sys.executable) as program, pytest.raises(PermissionError):
        program.ask("clock", seconds=60, payload=payload)


def test_who_takes_what_is_sent_has_more_time():
    """The time is that without progress, not of the whole."""

    def slowly(stream):
        for _ in range(4):
            time.sleep(0.4)
            stream.write(b"\n")

    with open_program(sys.executable) as program:
        program.ask("clock", seconds=10)
        program.ask("clock", seconds=0.8, payload=slowly)
