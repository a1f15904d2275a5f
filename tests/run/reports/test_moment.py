"""What a report says of one moment."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.record.times import moment_of
from tests.kit.screens.shown_run import NUM_EXCHANGES, SLOW, WELL, history, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in which a worker was slow for a while; its folder, and when its first step was."""
    now = time.time()
    folder = tmp_path_factory.mktemp("runs") / "a"
    write_run(folder, list(history(now, is_over=True)))
    return folder, now - NUM_EXCHANGES


MOMENTS = {
    SLOW - 40: (["about as fast as"], ["is slow"]),
    SLOW + 20: (["slower than the mean", "beta:0 is slow: 0.60 of its own speed (input)"], []),
    WELL + 30: (["about as fast as", "beta:0 is as fast as it should be again"], []),
}


@pytest.mark.parametrize("exchange", MOMENTS)
def test_what_was_so_then_is_told(run, capsys, exchange):
    """How fast it was, who was slow, what happened about that time; nothing of later."""
    folder, begin = run
    said, unsaid = MOMENTS[exchange]
    at = datetime.fromtimestamp(begin + exchange)  # noqa: DTZ006 - as people tell the time
    assert main(["report", str(folder), "--at", at.isoformat()]) == 0
    printed = capsys.readouterr().out
    assert [words for words in said if words not in printed] == []
    assert [words for words in unsaid if words in printed.split("\n  ")[1:]] == []


WRONG = {
    "2001-01-01T10:00": "is not in the run, which went from",
    "25:61": "must be a date and time",
    "yesterday": "must be a date and time",
}


@pytest.mark.parametrize("text", WRONG)
def test_another_moment_is_one_line(run, capsys, text):
    """Exit code 2."""
    assert main(["report", str(run[0]), "--at", text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert WRONG[text] in line


LAST = datetime(2026, 11, 25, 14, 30)  # noqa: DTZ001 - as above
TIMES = {
    "14:05": LAST.replace(minute=5),
    "14:30": LAST,
    "9:05": LAST.replace(hour=9, minute=5),
    "14:31": LAST.replace(minute=31) - timedelta(days=1),
    "14:05:30": LAST.replace(minute=5, second=30),
    "10m": LAST - timedelta(minutes=10),
    "2026-11-24T08:00": LAST.replace(day=24, hour=8, minute=0),
}


@pytest.mark.parametrize("text", TIMES)
def test_a_time_of_day_is_the_last_one(text):
    """Up to the end of the run; so long before is before its end."""
    assert moment_of("--at", text, LAST.timestamp()) == TIMES[text].timestamp()
