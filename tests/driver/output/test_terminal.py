"""What a person sees of a run on a terminal: lines that stay, and one that is written anew."""

import io
import logging
import sys

import pytest

pytest.importorskip("pyte")

from hetero_hvd.core.view.meanings import Words
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.output.json_logs import EVENTS
from hetero_hvd.driver.output.log_lines import console_log
from hetero_hvd.driver.output.terminal import Terminal, TerminalStyle
from tests.driver.output.test_console import SlowStream
from tests.kit.screens.terminal import OnTerminal

PROGRAM = """
import os, sys
from hetero_hvd.core.view.meanings import Words
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.output.json_logs import EVENTS
from hetero_hvd.driver.output.log_lines import console_log
from hetero_hvd.driver.output.terminal import TerminalStyle
style = TerminalStyle.of(
    os.environ, is_terminal=sys.stdout.isatty(), colour=sys.argv[1], verbosity=sys.argv[2]
)
console = Console(style=style)
for word in sys.stdin:
    match word.split():
        case ["end"]:
            break
        case ["status", *words]:
            console.show_status([Words(piece, "warning", rank) for rank, piece in enumerate(words)])
        case [meaning, *words]:
            console.say(" ".join(words), meaning)
console.close()
"""


def program(colour="auto", verbosity="normal", **more):
    """It shows what is typed."""
    return OnTerminal([sys.executable, "-c", PROGRAM, colour, verbosity], **more)


def shown(terminal):
    """What is to be seen."""
    return [line for line in terminal.shown if line]


def test_lines_stay_above_the_line_that_does_not():
    """And that one is gone at the end."""
    with program() as terminal:
        terminal.press("status first\n")
        terminal.until(lambda t: t.last == "first")
        terminal.press("note one\n")
        terminal.press("status second\n")
        terminal.until(lambda t: t.last == "second")
        assert shown(terminal) == ["one", "second"]
        terminal.press("output two\n")
        terminal.until(lambda t: shown(t) == ["one", "two", "second"])
        terminal.press("end\n")
        assert terminal.wait() == 0
        assert shown(terminal) == ["one", "two"]


def test_a_terminal_that_changes_its_size_loses_no_line():
    """The next status fits, and the lines above it are all there."""
    long, other = "x" * 30, "y" * 20
    with program(columns=60) as terminal:
        terminal.press(f"note above\nstatus {long} {other}\n")
        terminal.until(lambda t: shown(t) == ["above", f"{long}  {other}"])
        for columns, expected in ((40, long), (20, f"{long[:18]}…"), (100, f"{long}  {other}")):
            terminal.resize(columns, 24)
            terminal.press(f"status {long} {other}\n")
            terminal.until(lambda t, last=expected: shown(t) == ["above", last])
        terminal.press("end\n")
        assert terminal.wait() == 0
        assert shown(terminal) == ["above"]


COLOURS = {"problem": "red", "warning": "brown", "good": "green", "note": "default"}


def test_colours_tell_what_lines_mean():
    """As the terminal has them."""
    with program(colour="always") as terminal:
        for meaning in COLOURS:
            terminal.press(f"{meaning} a-{meaning}-line\n")
        terminal.press("end\n")
        assert terminal.wait() == 0
        found = {meaning: terminal.colour_of(f"a-{meaning}-line") for meaning in COLOURS}
    assert found == COLOURS


XTERM = {"TERM": "xterm-256color"}
STYLES = {
    "a terminal": (XTERM, True, "auto", "normal", (True, True)),
    "redirected": (XTERM, False, "auto", "normal", (False, False)),
    "redirected, with colours": (XTERM, False, "always", "normal", (False, True)),
    "dumb": ({"TERM": "dumb"}, True, "auto", "normal", (False, False)),
    "nobody says what it can": ({}, True, "auto", "normal", (False, False)),
    "NO_COLOR": ({**XTERM, "NO_COLOR": "1"}, True, "auto", "normal", (True, False)),
    "NO_COLOR is empty": ({**XTERM, "NO_COLOR": ""}, True, "auto", "normal", (True, True)),
    "NO_COLOR, but asked for": ({**XTERM, "NO_COLOR": "1"}, True, "always", "normal", (True, True)),
    "never": (XTERM, True, "never", "normal", (True, False)),
    "quiet": (XTERM, True, "auto", "quiet", (False, True)),
    "verbose": (XTERM, True, "auto", "verbose", (True, True)),
}


@pytest.mark.parametrize("case", STYLES)
def test_what_suits_a_terminal(case):
    """Whether a line is written anew, and whether there are colours."""
    environment, is_terminal, colour, verbosity, expected = STYLES[case]
    style = TerminalStyle.of(
        environment, is_terminal=is_terminal, colour=colour, verbosity=verbosity
    )
    assert (style.is_live, style.has_colour) == expected


ALWAYS = {"output", "note", "warning", "problem"}
SHOWN = {
    (False, "normal"): {*ALWAYS, "progress", "good", "step"},
    (True, "normal"): {*ALWAYS, "progress", "good"},
    (True, "verbose"): {*ALWAYS, "progress", "good", "step"},
    (False, "verbose"): {*ALWAYS, "progress", "good", "step"},
    (False, "quiet"): ALWAYS,
    (True, "quiet"): ALWAYS,
}


@pytest.mark.parametrize("case", SHOWN)
def test_what_is_shown(case):
    """What goes wrong always; where a line tells the step, none does for each."""
    style = TerminalStyle(is_live=case[0], verbosity=case[1])
    meanings = {*ALWAYS, "progress", "good", "step"}
    assert {meaning for meaning in meanings if style.shows(meaning)} == SHOWN[case]


class Letters(io.TextIOWrapper):
    """A stream for ASCII."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="ascii", errors="strict")


LOGGED = {
    "quiet": [],
    "normal": [],
    "verbose": ["info: a worker is connected\n", "warning: a disk is slow\n"],
}


@pytest.mark.parametrize("verbosity", LOGGED)
def test_what_is_logged_is_shown_to_who_asks_for_it(verbosity):
    """By us; events are shown already, in other words. Afterwards no more."""
    stream = io.StringIO()
    console = Console(stream, style=TerminalStyle(verbosity=verbosity))
    logger = logging.getLogger("hetero_hvd.driver.somewhere")
    logger.setLevel(logging.INFO)
    with console_log(console):
        logger.info("a worker is %s", "connected")
        logger.warning("a disk is slow")
        logging.getLogger(EVENTS).warning("an event")
        logging.getLogger("another.package").warning("of others")
    logger.warning("too late")
    console.close()
    logger.setLevel(logging.NOTSET)
    assert stream.getvalue().splitlines(keepends=True) == LOGGED[verbosity]


def test_a_terminal_that_stands_still_costs_no_line():
    """However often the status changes meanwhile: one change waits, and no line is dropped."""
    stream = SlowStream()
    console = Console(stream, style=TerminalStyle(is_live=True), max_lines=4)
    console.say("first")
    stream.entered.wait(5)
    for number in range(100):
        console.show_status([Words(f"status {number}")])
    console.say("second")
    stream.gate.set()
    console.close()
    assert stream.getvalue().startswith("first\n")
    assert "dropped" not in stream.getvalue()
    assert "second\n" in stream.getvalue()


def test_a_stream_without_blocks_gets_letters():
    """Whatever the locale has no letters for."""
    stream = Letters()
    terminal = Terminal(stream, TerminalStyle(is_live=True))
    terminal.status([Words("██▓▓ é")])
    stream.flush()
    assert stream.buffer.getvalue() == b"##== ?"
