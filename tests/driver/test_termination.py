"""Signals at every moment of a command: what was begun is ended, and nothing twice."""

from __future__ import annotations

import asyncio
import signal

import pytest

from hetero_hvd.driver.termination import Termination
from hetero_hvd.exit_codes import SIGNALLED

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANDLERS = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL]
"""Of these in a command that is started from a terminal."""


@pytest.fixture(autouse=True)
def as_from_a_terminal():
    """Whatever the tests were started by: a shell's background ignores SIGINT."""
    before = [
        signal.signal(number, handler) for number, handler in zip(NUMBERS, HANDLERS, strict=True)
    ]
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


class Thing:
    """Something that a command starts and ends; at the moments that are named a signal comes."""

    def __init__(self, number, moments):
        self._number = number
        self._moments = moments
        self.done = []

    def happens(self, moment):
        """A moment of the command, which is done unless it is interrupted."""
        for _ in range(self._moments.count(moment)):
            signal.raise_signal(self._number)
        self.done.append(moment)

    def start(self):
        """See `Startable`."""
        self.happens("start")

    def close(self):
        """See `Startable`."""
        self.happens("close")


def command(thing):
    """As `run`: what the job hears is among what is done."""

    async def job():
        with termination.told_to(thing.done.append):
            thing.happens("loop")
            await asyncio.sleep(0)

    with Termination() as termination:
        thing.happens("before")
        with termination.keeping(thing):
            thing.happens("between")
            asyncio.run(job())
            thing.happens("after")


ALL = ["before", "start", "between", "loop", "after", "close"]
MOMENTS = {
    "never": ([], ALL),
    "before anything is begun": (["before"], []),
    "while it is begun": (["start"], ["before", "close"]),
    "while that is ended": (["start", "close", "close"], ["before", "close"]),
    "before the loop": (["between"], ["before", "start", "close"]),
    "in the loop": (["loop"], [*ALL[:4], "NUMBER", *ALL[4:]]),
    "twice in the loop": (["loop", "loop"], [*ALL[:4], "NUMBER", "NUMBER", *ALL[4:]]),
    "after the loop": (["after", "after"], ALL),
    "at the end": (["close"], ALL),
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("moments", "expected"), MOMENTS.values(), ids=MOMENTS)
def test_whatever_was_begun_is_ended(number, moments, expected):
    """An exception until the loop hears of it; what ends is not interrupted."""
    thing = Thing(number, moments)
    raised = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    if moments and moments[0] in ("before", "start", "between"):
        with pytest.raises(raised) as caught:
            command(thing)
        assert caught.value.args in ((), (SIGNALLED + number,))
    else:
        command(thing)
    assert thing.done == [number if done == "NUMBER" else done for done in expected]
    assert [signal.getsignal(each) for each in NUMBERS] == HANDLERS


def test_under_nohup_a_terminal_may_be_closed():
    """Where the signal is ignored it stays so."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    thing = Thing(signal.SIGHUP, ["before", "loop"])
    command(thing)
    assert thing.done == ALL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
