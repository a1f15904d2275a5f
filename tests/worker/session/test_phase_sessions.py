"""Phases that are to be recorded: who has the hub hears of each change, whenever he comes."""

from __future__ import annotations

import logging

import pytest

import hetero_hvd
from hetero_hvd.worker.session import phase_sessions
from hetero_hvd.worker.session.phase_sessions import MAX_UNTOLD, NobodyRecords, PhaseSessions
from hetero_hvd.worker.timing import named_phases
from tests.module_clock import give_clock


class Listener:
    """Hears what is told, from when it is there on."""

    def __init__(self, *, is_there=True):
        self.is_there = is_there
        self.told = []
        self.ago = []

    def __call__(self, names, ago_seconds):
        """A change."""
        if self.is_there:
            self.told.append(names)
            self.ago.append(ago_seconds)
        return self.is_there


@pytest.fixture
def sessions(monkeypatch):
    """Of this process."""
    found = PhaseSessions()
    monkeypatch.setattr(named_phases, "phase_sessions", found)
    return found


def test_each_change_is_told(sessions):
    """What stands within itself is one, and what was timed only is none."""
    sessions.tell_through(listener := Listener())
    with hetero_hvd.phase("load", session=True):
        with hetero_hvd.phase("load", session=True), hetero_hvd.phase("augment"):
            pass
        with hetero_hvd.phase("fit", session=True):
            pass
    assert listener.told == [("load",), ("fit", "load"), ("load",), ()]


def test_what_nobody_has_heard_is_told_later(sessions, monkeypatch):
    """Before anybody is there, or while he is out of reach: with how long ago it was."""
    now = [100.0]
    give_clock(monkeypatch, phase_sessions, monotonic=lambda: now[0])

    def spend(name, seconds):
        with hetero_hvd.phase(name, session=True):
            now[0] += seconds

    spend("load", 30.0)
    sessions.tell_through(listener := Listener(is_there=False))
    spend("fit", 5.0)
    now[0] += 1.0
    listener.is_there = True
    sessions.tell_again()
    assert listener.told == [("load",), (), ("fit",), ()]
    assert listener.ago == [36.0, 6.0, 6.0, 1.0]
    for number in range(MAX_UNTOLD):
        listener.is_there = number > MAX_UNTOLD - 2
        spend("step", 0.0)
    assert len(listener.told) == 4 + MAX_UNTOLD + 1, "the oldest make room"


def test_who_comes_late_or_again_hears_how_it_is(sessions):
    """Nothing where nobody has ever wanted anything."""
    told, late = Listener(), Listener()
    sessions.tell_through(told)
    sessions.tell_again()
    assert told.told == []
    with hetero_hvd.phase("load", session=True):
        sessions.tell_again()
        sessions.tell_through(late)
    sessions.tell_again()
    assert (told.told, late.told) == ([("load",)] * 2, [("load",), (), ()])


def test_a_block_that_fails_is_left(sessions):
    """Whatever has ended it."""
    sessions.tell_through(listener := Listener())
    with pytest.raises(ZeroDivisionError), hetero_hvd.phase("load", session=True):
        _ = 1 / 0
    assert listener.told == [("load",), ()]


def test_without_a_driver_it_is_said_once(sessions, caplog):
    """And nothing else happens."""
    sessions.tell_through(NobodyRecords())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with hetero_hvd.phase("load", session=True):
                pass
    assert len(caplog.records) == 1
    assert "nothing is recorded" in caplog.text
