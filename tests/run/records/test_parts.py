"""A run in several folders is read as the one run that it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.cli import main
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.messages import (
    Evaluated,
    RunEnded,
    RunStarted,
    StepsTimed,
    StepTiming,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.records.parts import history, joined, parts_of, read_run, run_timings
from hetero_hvd.run.records.reader import Record, read_record
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.reports.facts import facts_of

RUN_ID = "run-0123abcd"
STARTED = RunStarted(run_id=RUN_ID, command=("train.py",), nodes=("a", "b"), settings={})
ENDED = RunEnded(exit_code=0, reason="the training is finished")


def met(rendezvous_id, applied_steps=0):
    """A membership of one worker."""
    return WorkersJoined(
        rendezvous_id=rendezvous_id,
        workers=(WorkerId("a", 0),),
        applied_steps=applied_steps,
        global_batch_size=8,
        capacities=(-1,),
        prefetch_steps=0,
    )


def timed(rendezvous_id, step):
    """An exchange after one step of 0.1 s."""
    row = StepTiming(
        num_steps=1,
        local_batch_size=8,
        memory_bytes=1.0,
        data_wait_seconds=0.0,
        transfer_seconds=0.0,
        forward_seconds=0.05,
        backward_seconds=0.05,
        comm_wait_seconds=0.0,
        optimizer_seconds=0.0,
        step_seconds=0.1,
    )
    return StepsTimed(
        rendezvous_id=rendezvous_id,
        step=step,
        epoch=0,
        loss=1.0,
        timings=(row,),
        exchange_seconds=0.0,
    )


def record_of(*events):
    """As it is read."""
    return Record(events=tuple(events), rollups=())


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    cut=st.lists(st.integers(0, 5), min_size=8, max_size=8),
)
def test_of_each_membership_the_part_counts_that_reaches_furthest(lengths, cut):
    """Whatever each part lacks at the end of a membership, what any of them has is there once."""
    parts: list[list] = [[], []]
    longest = []
    at = 0.0
    for number, length in enumerate(lengths, start=1):
        events = [(at, STARTED)] if number == 1 else []
        events += [(at, met(number))]
        events += [
            (at + n, Evaluated(epoch=number, step=n, metrics={})) for n in range(1, length + 1)
        ]
        at += 10.0
        least = len(events) - length
        found = [events[: least + cut[2 * number - 2 + part]] for part in range(2)]
        for number_of_part, kept in enumerate(found):
            parts[number_of_part] += kept
        longest += max(found, key=len)
    assert list(joined([record_of(*part) for part in parts]).events) == longest
    assert list(joined([record_of(*part) for part in parts[::-1]]).events) == longest


def test_an_end_counts_only_if_nothing_follows_it():
    """A rank 0 that has left has not ended the run; each part notes the end for itself."""
    first = record_of((0.0, STARTED), (0.0, met(1)), (5.0, ENDED))
    second = record_of((0.0, STARTED), (0.0, met(1)), (6.0, STARTED), (6.0, met(2)), (9.0, ENDED))
    found = [event for _, event in joined([first, second]).events]
    assert found == [STARTED, met(1), STARTED, met(2), ENDED]


def write(folder, *events):
    """Record a part, or go on with it."""
    folder.mkdir(exist_ok=True)
    recorder, timings = Recorder(folder), TimingLog(folder)
    for at, event in with_tables(iter(events)):
        recorder.observe(at, event)
        timings.observe(at, event)
    recorder.close()
    timings.close()


@pytest.fixture
def parts(tmp_path):
    """Rank 0's, which ends after the step 5, and its copy's, which lacks a step and goes on."""
    begin = [(100.0, STARTED), (100.0, met(1))]
    steps = [(100.1 + step / 10, timed(1, step)) for step in range(6)]
    begin_again = [(101.0, STARTED), (101.0, met(2, 6))]
    more = [(101.1 + step / 10, timed(2, 6 + step)) for step in range(4)]
    write(tmp_path / "run", *begin, *steps)
    write(tmp_path / "run.b", *begin, *steps[:-1])
    write(tmp_path / "run.b", *begin_again, *more, (102.0, ENDED))
    write(
        tmp_path / "run.c",
        (100.0, RunStarted(run_id="run-99999999", command=(), nodes=(), settings={})),
    )
    return tmp_path


@pytest.mark.parametrize("pause", [0.0, 1.0, 7.0, 10.0, 3600.0, -0.5, -10.0, -3600.0], ids=str)
def test_who_goes_on_in_a_folder_replaces_nothing_there(tmp_path, pause):
    """However soon that is, and whatever its clock says: no step that was recorded is lost."""
    steps = [(100.1 + step / 10, timed(1, step)) for step in range(120)]
    write(tmp_path / "run", (100.0, STARTED), (100.0, met(1)), *steps)
    at = 112.1 + pause
    more = [(at + step / 10, timed(2, 120 + step)) for step in range(150)]
    write(tmp_path / "run", (at, STARTED), (at, met(2, 120)), *more)
    rows = read_record(tmp_path / "run").rollups
    assert sum(row["num_steps"] for row in rows) == 119 + 149


@pytest.mark.parametrize("name", ["run", "run.b"])
def test_from_each_of_its_folders_the_whole_run_is_read(parts, name):
    """Steps, intervals and timings; another run with a similar name is none of its parts."""
    folder = parts / name
    assert parts_of(folder) == [parts / "run", parts / "run.b"]
    record = read_run(folder)
    facts = facts_of(record)
    assert (facts.state, facts.num_memberships, facts.steps) == (ENDED.reason, 2, 10)
    # The first exchange of each membership is left out: 5 and 3 are measured.
    assert sum(row["num_steps"] for row in record.rollups) == 5 + 3
    assert facts.samples_per_second == pytest.approx(80.0)
    steps = [event.step for _, event in run_timings(folder) if isinstance(event, StepsTimed)]
    assert steps == list(range(10))
    assert [type(event) for _, event in history(folder)].count(StepsTimed) == 10


def test_commands_show_one_run(parts, capsys, monkeypatch):
    """Below its headings, also from within the folder."""
    assert main(["runs", str(parts)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["run", "run.c"]
    monkeypatch.chdir(parts / "run")
    assert main(["report", "."]) == 0
    assert "the training is finished" in capsys.readouterr().out


@pytest.mark.parametrize("name", [".", ""])
def test_a_folder_in_which_one_stands_must_be_a_runs_too(name, tmp_path, capsys, monkeypatch):
    """Of one without a record nothing is said but that."""
    monkeypatch.chdir(tmp_path)
    for command in ("report", "advise", "cost"):
        assert main([command, name]) == 2
        assert "no run is recorded there" in capsys.readouterr().err


def test_a_part_that_cannot_be_read_does_not_hide_the_others(parts):
    """What is asked for itself must be there."""
    (parts / "run" / "run.sqlite").write_bytes(b"nothing" * 1000)
    assert facts_of(read_run(parts / "run.b")).state == ENDED.reason
    assert read_run(parts / "run.b").events == read_record(parts / "run.b").events
