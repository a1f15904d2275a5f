"""What was logged, in a run's catalogue: written, read back, bounded, and read with care."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import pytest

from hetero_hvd.errors import JobError
from hetero_hvd.messages import Logged, LoggedValue
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.records.writer import FILE, Recorder

from .test_records import JOINED, write


def told(step, **values):
    """Each once."""
    kinds = {
        name: LoggedValue(step=step, count=1, mean=v, minimum=v, maximum=v, last=v)
        for name, v in values.items()
    }
    return Logged(step=step, epoch=step // 10, values=kinds, remaining_steps=100 - step)


def test_what_was_logged_is_read_back(tmp_path):
    """In order, infinity and NaN included, and not among the other events."""
    sent = [told(3, x=0.1, y=math.inf), told(7, x=1 / 3), told(12, z=-0.0)]
    write(tmp_path, JOINED, *sent)
    record = read_record(tmp_path)
    assert [event for _, event in record.events] == [JOINED]
    assert [event for _, event in record.logged] == sent
    assert [at for at, _ in record.logged] == [10.0, 20.0, 30.0]
    write(tmp_path, told(20, x=math.nan))
    assert math.isnan(read_record(tmp_path).logged[-1][1].values["x"].mean)


def test_only_what_is_new_is_read(tmp_path):
    """Who follows a run asks from a mark on."""
    write(tmp_path, JOINED, told(1, x=1.0))
    mark = read_record(tmp_path).mark
    write(tmp_path, told(2, x=2.0))
    news = read_record(tmp_path, mark)
    assert [event.step for _, event in news.logged] == [2]
    assert news.events == ()
    assert read_record(tmp_path, news.mark).logged == ()


def test_a_record_of_an_earlier_version_has_none(tmp_path):
    """It has no such table; a run that is gone on with gets one."""
    write(tmp_path, JOINED)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute("DROP TABLE logged")
    assert read_record(tmp_path).logged == ()
    write(tmp_path, told(2, x=2.0))
    assert len(read_record(tmp_path).logged) == 1


def test_a_record_that_does_not_tell_what_remains_is_read_and_written_on(tmp_path):
    """One of an earlier version: how far it has come is not known, and from then on it is."""
    write(tmp_path, JOINED, told(1, x=1.0))
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("ALTER TABLE logged DROP COLUMN remaining_steps")
    assert [event.total_steps for _, event in read_record(tmp_path).logged] == [None]
    write(tmp_path, told(2, x=2.0))
    assert [event.total_steps for _, event in read_record(tmp_path).logged] == [None, 100]


HOSTILE = {
    "no number of steps": "UPDATE logged SET remaining_steps = 'x'",
    "a view": "DROP TABLE logged; CREATE VIEW logged AS SELECT 1 AS id",
    "a text": "UPDATE logged SET mean = 'x'",
    "no step": "UPDATE logged SET step = NULL",
    "no name": "UPDATE logged SET name = x'00'",
    "no time": "UPDATE logged SET at_unix_seconds = NULL",
    "no such column": "ALTER TABLE logged DROP COLUMN maximum; ALTER TABLE logged DROP COLUMN step",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_table_that_is_none_is_refused(tmp_path, case):
    """In one line that names the file."""
    write(tmp_path, told(1, x=1.0))
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.executescript(HOSTILE[case])
    with pytest.raises(JobError, match=r"run\.sqlite cannot be read"):
        read_record(tmp_path)


def test_a_week_of_many_names_is_small(tmp_path):
    """16,000 times five names, as `worker/logged_values.py` tells at most: less than 10 MiB."""
    recorder = Recorder(tmp_path)
    event = told(1, a=1.0, b=2.0, c=3.0, d=4.0, e=5.0)
    for number in range(16_000):
        recorder.observe(float(number), event)
        if number % 1000 == 0:
            recorder.flush()
    recorder.close()
    assert recorder.num_lost == 0
    assert (tmp_path / FILE).stat().st_size < 10 * 2**20
    found = [event.values["a"].count for _, event in read_record(tmp_path).logged]
    assert sum(found) == 16_000 * event.values["a"].count
