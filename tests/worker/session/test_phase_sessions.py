"""Phases that are to be recorded: who has the hub hears of each change, whenever he comes."""

from __future__ import annotations

import logging

import pytest

import hetero_hvd
from hetero_hvd.worker.session.phase_sessions import NobodyRecords, PhaseSessions
from hetero_hvd.worker.timing import named_phases


@pytest.fixture
def sessions(monkeypatch):
    """Of this process."""
    found = PhaseSessions()
    monkeypatch.setattr(named_phases, "phase_sessions", found)
    return found


def test_each_change_is_told(sessions):
    """What stands within itself is one, and what was timed only is none."""
    told = []
    sessions.tell_through(told.append)
    with hetero_hvd.phase("load", session=True):
        with hetero_hvd.phase("load", session=True), hetero_hvd.phase("augment"):
            pass
        with hetero_hvd.phase("fit", session=True):
            pass
    assert told == [("load",), ("fit", "load"), ("load",), ()]


def test_who_comes_late_or_again_hears_how_it_is(sessions):
    """Nothing where nobody has ever wanted anything."""
    told, late = [], []
    sessions.tell_through(told.append)
    sessions.tell_again()
    assert told == []
    with hetero_hvd.phase("load", session=True):
        sessions.tell_again()
        sessions.tell_through(late.append)
    sessions.tell_again()
    assert (told, late) == ([("load",)] * 2, [("load",), (), ()])


def test_a_block_that_fails_is_left(sessions):
    """Whatever has ended it."""
    told = []
    sessions.tell_through(told.append)
    with pytest.raises(ZeroDivisionError), hetero_hvd.phase("load", session=True):
        _ = 1 / 0
    assert told == [("load",), ()]


def test_without_a_driver_it_is_said_once(sessions, caplog):
    """And nothing else happens."""
    sessions.tell_through(NobodyRecords())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with hetero_hvd.phase("load", session=True):
                pass
    assert len(caplog.records) == 1
    assert "nothing is recorded" in caplog.text
