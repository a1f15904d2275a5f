"""A run's folder may come from anybody: every reader of it ends, and runs nothing that is in it."""

import os
import sqlite3
from contextlib import closing

import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import JobError
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.records import reader
from hetero_hvd.run.records.writer import FILE, Recorder

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "


def changed_by(statements):
    """A record in which SQL was run."""

    def make(run):
        with closing(sqlite3.connect(run / FILE)) as connection:
            connection.executescript(statements)

    return make


def deep_json(run):
    """An event that is nested deeper than any stack."""
    with closing(sqlite3.connect(run / FILE)) as connection, connection:
        connection.execute("INSERT INTO events VALUES (9, 1.0, '', ?)", (b"[" * 10**6 + b"null",))


def pipe(name):
    """A file that nobody ever writes to, so that opening it would wait for ever."""

    def make(run):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return make


def endless_file(name):
    """A file that has no end."""

    def make(run):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to("/dev/zero")

    return make


HOSTILE = {
    "events is a view": changed_by(
        f"DROP TABLE events; CREATE VIEW events AS {ENDLESS} i AS id, 1.0 AS at_unix_seconds, "
        "'' AS kind, '' AS body FROM n WHERE i < 0"
    ),
    "EVENTS is a view": changed_by(
        f"DROP TABLE events; CREATE VIEW EVENTS AS {ENDLESS} i AS id, 1.0 AS at_unix_seconds, "
        "'' AS kind, '' AS body FROM n"
    ),
    "rollups is a view": changed_by(
        f"DROP TABLE rollups; CREATE VIEW rollups AS {ENDLESS} i AS at_unix_seconds, 'a:0' AS "
        "worker FROM n"
    ),
    "events is virtual": changed_by(
        "DROP TABLE events; CREATE VIRTUAL TABLE events USING fts5(id, at_unix_seconds, kind, body)"
    ),
    "a column is computed": changed_by(
        "DROP TABLE events; CREATE TABLE events (id INTEGER PRIMARY KEY, at_unix_seconds REAL, "
        "kind TEXT, body TEXT GENERATED ALWAYS AS (hex(zeroblob(100000000)))); "
        "INSERT INTO events (id, at_unix_seconds, kind) VALUES (1, 1.0, 'x')"
    ),
    "a table is missing": changed_by("DROP TABLE rollups"),
    "a column is missing": changed_by("ALTER TABLE events DROP COLUMN body"),
    "a time is text": changed_by("UPDATE events SET at_unix_seconds = 'now'"),
    "a body is a number": changed_by("UPDATE events SET body = 7"),
    "a body is null": changed_by("UPDATE events SET kind = '', body = X''"),
    "a rollup is text": changed_by(
        "INSERT INTO rollups (at_unix_seconds, worker, samples) VALUES (1.0, 'a:0', 'many')"
    ),
    "a rollup is null": changed_by(
        "INSERT INTO rollups (at_unix_seconds, worker) VALUES (1.0, 'a:0')"
    ),
    "a rollup is nobody's": changed_by(
        "INSERT INTO rollups (at_unix_seconds, last_step, num_steps, samples) VALUES (1.0, 1, 1, 1)"
    ),
    "a sample has no length": changed_by(
        "INSERT INTO samples (at_unix_seconds, node, device, uuid, power_watts_mean) "
        "VALUES (1.0, 'a', -1, '', 3.0)"
    ),
    "an event is deep": deep_json,
    "the record is a pipe": pipe(FILE),
    "the record is endless": endless_file(FILE),
    "timings are a pipe": pipe("timings.jsonl"),
    "timings are endless": endless_file("timings.jsonl"),
}
HARMLESS = {
    "a time is far off": changed_by("UPDATE events SET at_unix_seconds = 1e300"),
    "a time is endless": changed_by("UPDATE events SET at_unix_seconds = 9e999"),
    "a time is long ago": changed_by("UPDATE events SET at_unix_seconds = -1e300"),
    "a rollup is of no time": changed_by(
        "INSERT INTO rollups (worker, last_step, num_steps, samples) VALUES ('a:0', 1, 1, 1)"
    ),
    "a rollup has no step": changed_by(
        "INSERT INTO rollups (at_unix_seconds, worker, last_step, num_steps, samples) "
        "VALUES (1.0, 'a:0', 1, 0, 1)"
    ),
    "a value was never logged": changed_by(
        "INSERT INTO logged (at_unix_seconds, name, step, count, told_step, epoch) "
        "VALUES (9e999, 'x', 1, 0, 1, 0)"
    ),
}
"""Strange, and yet what a record may hold."""

READERS = {
    "report": ("report", "RUN"),
    "html": ("report", "RUN", "--html", "PAGE"),
    "csv": ("export", "RUN"),
    "openmetrics": ("export", "RUN", "--to", "OUT"),
    "compare": ("compare", "RUN", "GOOD"),
    "runs": ("runs", "RUNS"),
    "runs as JSON": ("runs", "RUNS", "--json"),
    "cost": ("cost", "RUN"),
    "top": ("top", "RUN", "--once"),
}
READS_THE_RECORD_ALONE = {"report", "csv", "openmetrics", "cost"}
READS_TIMINGS_ALONE_IF_THERE_IS_NO_RECORD = {"top"}


@pytest.fixture
def runs(tmp_path):
    """A folder with two good runs."""
    for name in ("good", "bad"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        recorder = Recorder(run)
        recorder.observe(1.0, RunStarted(run_id=name, command=("x",), nodes=(), settings={}))
        recorder.close()
        (run / "timings.jsonl").touch()
    return tmp_path / "runs"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_every_reader_ends_with_one_line(runs, capsys, kind, name):
    """It says what cannot be read; `runs` shows the other runs all the same."""
    HOSTILE[kind](runs / "bad")
    places = {"RUN": runs / "bad", "GOOD": runs / "good", "RUNS": runs, "PAGE": runs / "page"}
    places["OUT"] = f"openmetrics:{runs / 'out'}"
    code = main([str(places.get(word, word)) for word in READERS[name]])
    printed = capsys.readouterr()
    if name.startswith("runs"):
        assert "good" in printed.out
    if (
        name.startswith("runs")
        or (kind.startswith("timings") and name in READS_THE_RECORD_ALONE)
        or (kind.startswith("the record") and name in READS_TIMINGS_ALONE_IF_THERE_IS_NO_RECORD)
    ):
        assert (code, printed.err) == (0, "")
    else:
        assert code == 2
        assert str(runs / "bad") in printed.err
        assert printed.err.count("\n") == 1


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", HARMLESS)
def test_every_reader_takes_what_is_strange(runs, capsys, kind, name):
    """Whatever it makes of it."""
    HARMLESS[kind](runs / "bad")
    places = {"RUN": runs / "bad", "GOOD": runs / "good", "RUNS": runs, "PAGE": runs / "page"}
    places["OUT"] = f"openmetrics:{runs / 'out'}"
    assert main([str(places.get(word, word)) for word in READERS[name]]) == 0
    assert capsys.readouterr().err == ""


ANNOUNCED = [
    b"",
    b"{}",
    b"[]",
    b"\xff",
    b'{"url": 7}',
    b'{"url": "x"}',
    b'{"url": "http://\\u0000"}',
]


@pytest.mark.parametrize("content", ANNOUNCED, ids=repr)
def test_what_tells_no_address_is_no_page(runs, capsys, content):
    """Then the record is shown."""
    (runs / "bad" / "live.json").write_bytes(content)
    assert main(["top", str(runs / "bad"), "--once"]) == 0
    assert capsys.readouterr().out.startswith("bad  no end recorded")
    (runs / "bad" / "timings.jsonl").unlink()
    assert main(["top", str(runs / "bad"), "--once"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_row_has_its_time(runs, monkeypatch):
    """Whatever makes SQLite compute without giving a row is ended."""
    HOSTILE["events is a view"](runs / "bad")
    monkeypatch.setattr(reader, "MAX_ROW_SECONDS", 0.1)
    monkeypatch.setattr(reader, "_check_plain", lambda *_: None)
    with pytest.raises(JobError, match="interrupted"):
        reader.read_record(runs / "bad")
