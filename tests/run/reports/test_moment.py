"""What a report says of one moment."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.record.times import moment_of
from hetero_hvd.errors import UserError
from hetero_hvd.messages import (
    Judged,
    RunEnded,
    RunStarted,
    StallReported,
    StragglerReported,
    WorkerExited,
    WorkerId,
    WorkerStarted,
)
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.rollup import INTERVAL_SECONDS
from hetero_hvd.run.reports.moment import said_of
from tests.kit.screens.shown_run import NUM_EXCHANGES, SLOW, WELL, history, joined, write_run

SLOW_WORKER, OTHER = WorkerId("beta", 0), WorkerId("alpha", 0)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """A machine whose own time is five hours before the one that is shown."""
    monkeypatch.setenv("TZ", "XXX5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


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
    at = datetime.fromtimestamp(begin + exchange, UTC).replace(tzinfo=None)
    assert main(["report", str(folder), "--at", at.isoformat()]) == 0
    printed = capsys.readouterr().out
    assert [words for words in said if words not in printed] == []
    assert [words for words in unsaid if words in printed.split("\n  ")[1:]] == []


STARTED = RunStarted(run_id="a-1", command=(), nodes=(), settings={})
ENDED = RunEnded(exit_code=1, reason="crash")
UNDER_WAY = {
    "slow": ([], True),
    "the end": ([ENDED], False),
    "a new start": ([STARTED], False),
    "both": ([ENDED, STARTED], False),
    "members without it": ([joined((OTHER,), 9, 9)], False),
    "members with it": ([joined((OTHER, SLOW_WORKER), 9, 9)], True),
    "its process has ended": ([WorkerExited(SLOW_WORKER, "beta", 1, "exits with 1")], False),
    "its process is another one": ([WorkerStarted(SLOW_WORKER, "beta", 1)], False),
    "another process has ended": ([WorkerExited(OTHER, "alpha", 1, "exits with 1")], True),
}


@pytest.mark.parametrize("then", UNDER_WAY)
def test_what_is_over_is_under_way_no_more(run, then):
    """Who was slow in a start of the run, or as a member, is not slow behind it; nor is a stall."""
    folder, begin = run
    record = read_run(folder)
    slow = StragglerReported(9, SLOW_WORKER, is_slow=True, speed_ratio=0.5, cause="input")
    stall = StallReported(step=9, is_stalled=True, seconds=9.0, workers=(OTHER,), phases=("data",))
    events, is_slow = UNDER_WAY[then]
    judged = next(event for _, event in record.events if isinstance(event, Judged))
    before = (slow, stall, judged, *events)
    told = [(begin, STARTED), *((begin + 100.0, event) for event in before)]
    lines = list(said_of(replace(record, events=tuple(told)), begin + 100.0 + 60.5))
    assert len([line for line in lines if "beta:0 is slow" in line]) == is_slow
    has_begun_anew = ENDED in events or STARTED in events
    for words in ("alpha:0", "judged then"):
        assert any(words in line for line in lines[1:]) != has_begun_anew


PAUSES = {  # seconds behind the last step before a pause of 1000 s: what is said of the speed
    -5.0: "about as fast as",
    500.0: "no step was taken then; the mean of the run is",
    1005.0: "about as fast as",
    1000.0 + 60.0: "the run had ended",
}


@pytest.mark.parametrize("after", PAUSES)
def test_no_speed_is_told_where_nothing_ran(run, after):
    """An interval is of the moments in it; steps longer than it are under way before it, too."""
    folder, begin = run
    record = read_run(folder)
    first = [row for row in record.rollups if row["at_unix_seconds"] < begin + 60.0]
    last = max(row["at_unix_seconds"] for row in first) + INTERVAL_SECONDS
    later = [
        row | {"at_unix_seconds": row["at_unix_seconds"] + last + 1000.0 - begin} for row in first
    ]
    events = ((begin, STARTED), (last + 1055.0, ENDED))
    paused = replace(record, rollups=(*first, *later), events=events)
    assert PAUSES[after] in next(said_of(paused, last + after))


def test_a_long_step_is_under_way_before_the_interval_in_which_it_ends(run):
    """It counts where it ends."""
    folder, begin = run
    record = read_run(folder)
    row = record.rollups[0] | {"at_unix_seconds": begin + 100.0, "step_seconds": 80.0}
    long = replace(record, rollups=(row,))
    assert "no step was taken then" in next(said_of(long, begin + 25.0))
    assert "samples/s, about as fast as" in next(said_of(long, begin + 35.0))


@pytest.mark.parametrize("begins", [1.0, 17.5, 59.5])
def test_the_minute_in_which_a_run_began_is_in_it(run, begins):
    """Lists show no seconds, so what was copied from them means the whole minute."""
    minute = 1_800_000_000.0
    rows = tuple(row | {"at_unix_seconds": minute + begins} for row in read_run(run[0]).rollups[:1])
    events = ((minute + begins, STARTED), (minute + 300.0, ENDED))
    begun = replace(read_run(run[0]), rollups=rows, events=events)
    assert next(said_of(begun, minute))
    for outside in (minute - 60.0, minute + 0.5):
        with pytest.raises(UserError, match="is not in the run"):
            list(said_of(begun, outside))


WRONG = {
    "2001-01-01T10:00": "is not in the run, which went from",
    "9999-12-31T23:59-10:00": "is not in the run, which went from",
    "2500000d": "is not in the run, which went from",
    "25:61": "must be a date and time",
    "yesterday": "must be a date and time",
}


@pytest.mark.parametrize("text", WRONG)
def test_another_moment_is_one_line(run, capsys, text):
    """Exit code 2."""
    assert main(["report", str(run[0]), "--at", text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert WRONG[text] in line


LAST = datetime(2026, 11, 25, 14, 30, tzinfo=UTC)
YESTERDAY = LAST - timedelta(days=1)
TIMES = {
    "14:05": LAST.replace(minute=5),
    "14:30": LAST,
    "9:05": LAST.replace(hour=9, minute=5),
    "09:05": LAST.replace(hour=9, minute=5),
    "14:31": YESTERDAY.replace(minute=31),
    "14:05:30": LAST.replace(minute=5, second=30),
    "9:05:30": LAST.replace(hour=9, minute=5, second=30),
    "09:05:30": LAST.replace(hour=9, minute=5, second=30),
    "0:00": LAST.replace(hour=0, minute=0),
    "23:59:59": YESTERDAY.replace(hour=23, minute=59, second=59),
    "10m": LAST - timedelta(minutes=10),
    "2026-11-24T08:00": YESTERDAY.replace(hour=8, minute=0),
    "2026-11-24 08:00:30": YESTERDAY.replace(hour=8, minute=0, second=30),
    "2026-11-24": YESTERDAY.replace(hour=0, minute=0),
    "2026-11-24T08:00Z": YESTERDAY.replace(hour=8, minute=0),
    "2026-11-24T08:00+02:00": YESTERDAY.replace(hour=6, minute=0),
}
NO_TIMES = (
    "",
    "9",
    "9:5",
    "9:05:3",
    "009:05",
    "24:00",
    "9:60",
    "9:05:60",
    "9:05:",
    "9:05 pm",
    "-9:05",
)


@pytest.mark.parametrize("text", TIMES)
def test_a_time_of_day_is_the_last_one(text):
    """Up to the end of the run, in UTC; so long before is before its end."""
    assert moment_of("--at", text, LAST.timestamp()) == TIMES[text].timestamp()


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_time_is_refused(text):
    """In one line."""
    with pytest.raises(UserError, match=r"^--at: found .*must be a date and time"):
        moment_of("--at", text, LAST.timestamp())


TOGETHER = (
    ("--at=10m", "--json"),
    ("--at=10m", "--html=x.html"),
    ("--at=10m", "--plot=x.png"),
    ("--json", "--html=x.html"),
    ("--json", "--plot=x.png"),
)


@pytest.mark.parametrize("flags", TOGETHER)
def test_no_option_is_left_unheeded(run, tmp_path, monkeypatch, capsys, flags):
    """Two of which a report does but one are refused in one line; nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run[0]), *flags]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    one, other = (flag.split("=")[0] for flag in flags)
    assert f"{one} and {other}: cannot be given together" in line
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []
