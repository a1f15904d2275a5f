"""A run's records: complete, readable at any time, and safe from the death of the writer."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import asdict

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.errors import JobError
from hetero_hvd.messages import (
    CollectivesTimed,
    Decided,
    Evaluated,
    Finding,
    Judged,
    OperationTiming,
    PhasesTimed,
    RunEnded,
    StepsTimed,
    StepTiming,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.records.timings import MAX_SEGMENTS, TimingLog, read_timings
from hetero_hvd.run.records.writer import FILE, MAX_WAITING, Recorder
from hetero_hvd.run.reports.facts import facts_of

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)
NUM_KILLS = 20
FORK = multiprocessing.get_context("fork")


def timing(share, *, data=0.01, memory=1e9):
    """Ten steps of one worker."""
    return StepTiming(
        num_steps=10,
        local_batch_size=share,
        memory_bytes=memory,
        data_wait_seconds=data,
        transfer_seconds=0.0,
        forward_seconds=0.03,
        backward_seconds=0.05,
        comm_wait_seconds=0.01,
        optimizer_seconds=0.0,
        step_seconds=0.09 + data,
        other_seconds=0.002,
        evaluation_seconds=0.004,
        overlapped_comm_seconds=0.02,
    )


def timed(step, *rows):
    """One exchange."""
    return StepsTimed(
        rendezvous_id=1, step=step, epoch=0, loss=1.0, timings=rows, exchange_seconds=0.0
    )


JOINED = WorkersJoined(
    rendezvous_id=1,
    workers=(ALPHA, BETA),
    applied_steps=0,
    global_batch_size=12,
    capacities=(-1, -1),
    prefetch_steps=0,
)

DECIDED = Decided(rendezvous_id=1, step=9, action="keep", reason="numbers that are not measured")


def write(folder, *events):
    """Record events, ten seconds apart, as a run does."""
    recorder = Recorder(folder)
    timed_events = ((10.0 * number, event) for number, event in enumerate(events))
    for at_seconds, event in with_tables(timed_events):
        recorder.observe(at_seconds, event)
    recorder.close()
    assert recorder.num_lost == 0


def test_what_was_written_is_read(tmp_path):
    """Events come back in order; timings as sums per worker, without the first exchange."""
    ended = RunEnded(exit_code=0, reason="done")
    rows = timing(8), timing(4, memory=math.nan)
    write(tmp_path, JOINED, timed(9, *rows), timed(19, *rows), timed(29, *rows), ended)
    record = read_record(tmp_path)
    assert [event for _, event in record.events] == [JOINED, ended]
    assert [(row["worker"], row["samples"]) for row in record.rollups] == [
        ("alpha:0", 80),
        ("beta:0", 40),
    ] * 2
    assert record.rollups[0]["memory_bytes"] == 1e9
    assert record.rollups[1]["memory_bytes"] is None
    assert facts_of(record).samples_per_second == pytest.approx(120.0)


def write_until_killed(folder, pipe):
    """Record events and say up to which they are safe; the whole life of a process."""
    recorder, log = Recorder(folder), TimingLog(folder, segment_bytes=2000)
    log.write(0.0, JOINED)
    for step in itertools.count():
        recorder.observe(float(step), Evaluated(epoch=0, step=step, metrics={}))
        log.write(float(step), timed(step, timing(8), timing(4)))
        if step % 7 == 0 and recorder.flush():
            os.write(pipe, b"%d\n" % step)


def test_a_killed_writer_loses_nothing_that_it_called_safe(tmp_path):
    """After SIGKILL at any moment all acknowledged events are there, in order, without gaps."""
    chance = random.Random(7)  # noqa: S311 - a schedule that can be repeated
    num_killed = 0
    for kill in range(NUM_KILLS):
        folder = tmp_path / str(kill)
        folder.mkdir()
        receiver, sender = os.pipe()
        writer = FORK.Process(target=write_until_killed, args=(folder, sender), daemon=True)
        writer.start()
        os.close(sender)
        with os.fdopen(receiver, "rb") as pipe:
            lines = [pipe.readline() for _ in range(chance.randrange(1, 12))]
            if kill % 2:
                read_record(folder)  # a reader beside the writer disturbs neither
                list(read_timings(folder))
            threading.Event().wait(chance.uniform(0.0, 0.003))
            writer.kill()
            lines += pipe.readlines()
        writer.join()
        num_killed += writer.exitcode == -signal.SIGKILL
        steps = [event.step for _, event in read_record(folder).events]
        assert steps == list(range(len(steps)))
        assert len(steps) > int(lines[-1])
        timings = [e.step for _, e in read_timings(folder) if isinstance(e, StepsTimed)]
        assert timings == list(range(timings[0], timings[-1] + 1))
        assert timings[-1] >= int(lines[-1])
    assert num_killed == NUM_KILLS


OTHERS = ["timings-backup.jsonl", "timings-.jsonl", "timings-1.jsonl", "timings-000001 (1).jsonl"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_somebody_else_is_no_segment(tmp_path, name):
    """Such as a copy that was made there: it is neither read, nor counted, nor removed."""
    (tmp_path / name).write_text("of somebody else\n")
    log = TimingLog(tmp_path, segment_bytes=1000)
    log.write(0.0, JOINED)
    for step in range(30):
        log.write(float(step), timed(step, timing(8), timing(4)))
    log.close()
    found = [event.step for _, event in read_timings(tmp_path) if isinstance(event, StepsTimed)]
    assert found == list(range(found[0], 30))
    assert len(list(tmp_path.glob("timings*.jsonl"))) == MAX_SEGMENTS + 1
    assert (tmp_path / name).read_text() == "of somebody else\n"


ARCHIVE = """
mount -t tmpfs none "$2" && cp -r "$1" "$2"/run && mount -o remount,ro "$2" || exit 99
exec "$0" -m hetero_hvd report "$2"/run
"""
MOUNT_FAILED = 99


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_record_is_read_where_nobody_can_write(tmp_path, is_whole):
    """Such as an archive, also where its writer was killed: as where one can write."""
    run, place = tmp_path / "run", tmp_path / "place"
    run.mkdir()
    place.mkdir()
    write(run, JOINED, RunEnded(exit_code=0, reason="done"))
    if not is_whole:
        (run / f"{FILE}-wal").write_bytes(b"x" * 100)
    command = ["unshare", "-m", "sh", "-c", ARCHIVE, sys.executable, str(run), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == MOUNT_FAILED:
        pytest.skip("needs root, to mount")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_disk_cannot_take_is_counted(tmp_path):
    """The loop never waits: events beyond the bound are counted and left out."""
    recorder = Recorder(tmp_path)
    recorder._thread = threading.current_thread()  # a disk that never answers
    for step in range(MAX_WAITING + 3):
        recorder.observe(0.0, Evaluated(epoch=0, step=step, metrics={}))
    assert recorder.num_lost == 3


@pytest.mark.parametrize("name", ["\udcff", "a\ud800b"])
def test_what_no_encoding_takes_is_counted(tmp_path, name):
    """The events beside it are recorded."""
    said = []
    recorder = Recorder(tmp_path, said.append)
    for names in ("before", name, "after"):
        recorder.observe(0.0, Evaluated(epoch=0, step=1, metrics={names: 1.0}))
    recorder.close()
    assert recorder.num_lost == 1
    assert "cannot be written" in said[0]
    found = [event.metrics for _, event in read_record(tmp_path).events]
    assert found == [{"before": 1.0}, {"after": 1.0}]


def test_no_run_and_a_foreign_file_are_named(tmp_path):
    """A folder without records, or with something else in their place, is one clear error."""
    with pytest.raises(JobError, match="no run is recorded there"):
        read_record(tmp_path)
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(JobError, match="cannot be read"):
        read_record(tmp_path)


def test_commands_show_a_run(tmp_path, capsys):
    """`report`, `runs` and `export` tell what binds the run, who is slow, and the figures."""
    slow = Finding(kind="straggler", is_complete=True, words="beta:0 is slow", worker=BETA)
    bound = Finding(kind="input", is_complete=True, words="bound by input", next_step="more disks")
    judged = Judged(step=29, findings=(bound, slow))
    rows = timing(8, data=0.2), timing(4, data=0.2)
    folder = tmp_path / "one"
    folder.mkdir()
    write(folder, JOINED, timed(9, *rows), timed(19, *rows), DECIDED, judged)
    assert main(["report", str(folder)]) == 0
    report = capsys.readouterr().out
    assert "no end recorded" in report
    assert "bound by input. Next: more disks\n  beta:0 is slow" in report
    assert main(["report", str(folder), "--json"]) == 0
    assert '"samples_per_second"' in capsys.readouterr().out
    assert main(["runs", str(tmp_path)]) == 0
    (_, line) = capsys.readouterr().out.splitlines()
    assert line.split() == ["one", "no-end", "20", "41", "bound", "by", "input"]
    assert main(["export", str(folder)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "at_unix_seconds,step,name,value"
    assert any(",run/samples_per_second," in line for line in lines)
    assert asdict(facts_of(read_record(folder)))["num_memberships"] == 1


def test_report_tells_where_the_time_went(tmp_path, capsys):
    """Phases, lateness, the script's own names and the operations, of both workers."""
    folder = tmp_path / "run"
    folder.mkdir()
    named = PhasesTimed(worker=BETA, step=9, seconds={"augment": 0.3}, counts={"augment": 10})
    gather = OperationTiming.first("allgather", "gloo", 1024, num_bytes=500, seconds=0.002)
    rows = timing(8), msgspec.structs.replace(timing(4), comm_wait_seconds=0.004)
    write(
        folder,
        JOINED,
        timed(9, *rows),
        timed(19, *rows),
        named,
        named,
        CollectivesTimed(rendezvous_id=1, step=19, num_workers=2, operations=(gather,)),
    )
    assert main(["report", str(folder)]) == 0
    report = capsys.readouterr().out
    words = (
        " 100.00   10.00    0.00   30.00   50.00    0.00    4.00    2.00   10.00   20.00    0.00"
    )
    assert f"alpha:0 {words}" in report
    assert "   4.00   20.00    6.00\n" in report
    assert "beta:0   phase augment: 30.00 ms x 20" in report
    assert "allgather (gloo): 1 operations, 0.0 MB, 2.00 ms each" in report
    assert main(["report", str(folder), "--json"]) == 0
    alpha, beta = json.loads(capsys.readouterr().out)["phases"]
    assert alpha["phases"]["other"] == pytest.approx(0.002)
    assert beta["lateness_seconds"] == pytest.approx(0.006)


def test_a_catalogue_with_fewer_columns_is_read(tmp_path):
    """A run of an earlier version: what it did not measure is unmeasured, not zero."""
    write(tmp_path, JOINED, timed(9, timing(8), timing(4)), timed(19, timing(8), timing(4)))
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("ALTER TABLE rollups DROP COLUMN other_seconds")
    connection.close()
    row = read_record(tmp_path).rollups[0]
    assert row["other_seconds"] is None
    assert row["step_seconds"] == pytest.approx(1.0)


def test_a_catalogue_with_fewer_columns_is_written_on(tmp_path):
    """A run of an earlier version is resumed: what is new is measured from then on."""
    write(tmp_path, JOINED, timed(9, timing(8), timing(4)), timed(19, timing(8), timing(4)))
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("ALTER TABLE rollups DROP COLUMN evaluation_seconds")
        connection.execute("DELETE FROM rollups")
    connection.close()
    write(tmp_path, JOINED, timed(29, timing(8), timing(4)), timed(39, timing(8), timing(4)))
    row = read_record(tmp_path).rollups[0]
    assert row["evaluation_seconds"] == pytest.approx(0.04)


FORKING = """
import os, sqlite3, sys, threading
from pathlib import Path
from hetero_hvd.messages import Evaluated
from hetero_hvd.run.records.writer import Recorder

recorder = Recorder(Path(sys.argv[1]))
recorder.pause_at_forks()

def record():
    step = 0
    while True:
        recorder.observe(float(step), Evaluated(epoch=0, step=step, metrics={}))
        step += 1
        if step % 50 == 0:
            recorder.flush()

threading.Thread(target=record, daemon=True).start()
for _ in range(200):
    child = os.fork()
    if not child:
        with sqlite3.connect(":memory:") as connection:
            connection.execute("CREATE TABLE t (x)")
        os._exit(recorder._in_sqlite.locked())
    assert os.waitpid(child, 0)[1] == 0
assert recorder.num_lost == 0
os._exit(0)
"""


def test_a_process_may_fork_beside_its_recorder(tmp_path):
    """A child that uses SQLite, such as a DataLoader's, finds no mutex taken for ever.

    Nor does one that forks itself wait for a thread that is not there.
    """
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    assert len(read_record(tmp_path).events) > 0
