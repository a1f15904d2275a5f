"""Many runs as a table: which had what result, with which tags?"""

from __future__ import annotations

import json

import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import UserError
from hetero_hvd.messages import Evaluated, Finished, RunEnded, RunStarted, WorkerId
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.reports.catalogue import choose, in_lines, recorded_runs
from tests.run.records.test_logged import told
from tests.run.records.test_records import JOINED, write

RUNS = {
    "a": ("plain", {"lr": "0.1", "opt": "sgd"}, 0.91),
    "b": ("", {"lr": "0.3"}, 0.95),
    "c": ("best", {"lr": "0.05", "opt": "adam", 'odd "name': "1"}, 0.97),
    "d": ("", {}, None),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four runs, and one whose record is none."""
    top = tmp_path_factory.mktemp("runs")
    for name, (label, tags, accuracy) in RUNS.items():
        (top / name).mkdir()
        recorder = Recorder(top / name)
        start = RunStarted(
            run_id=name, command=("t.py",), nodes=(), settings={}, name=label, tags=tags
        )
        recorder.observe(1000.0, start)
        for epoch in (0, 1) if accuracy else ():
            metrics = {"accuracy": accuracy - 0.5 * (epoch == 0)}
            recorder.observe(1001.0, Evaluated(epoch=epoch, step=9, metrics=metrics))
        recorder.observe(1002.0, RunEnded(exit_code=0, reason="the training is finished"))
        recorder.close()
    (top / "e").mkdir()
    (top / "e" / "run.sqlite").write_bytes(b"nothing of the kind" * 100)
    return top


CHOICES = {
    "accuracy > 0.9 and tag.lr < 0.2": "ac",
    "metric.accuracy > 0.9": "abc",
    "tag.opt = 'adam'": "c",
    "tag.opt is null": "bde",
    "name = 'best' or folder = 'd'": "cd",
    "accuracy is not null": "abc",
    "abs(tag.lr - 0.1) < 0.001": "a",
    '"odd ""name" = 1': "c",
    "state = 'the training is finished'": "abcd",
    "": "abcde",
}


@pytest.mark.parametrize("where", CHOICES)
def test_runs_are_chosen_by_a_condition(folder, where):
    """On tags, metrics and what is known of each; unknown fulfils nothing."""
    found = choose(recorded_runs(folder), where=where, sort="")
    assert "".join(run.folder.name for run in found) == CHOICES[where]


@pytest.mark.parametrize(
    "last",
    [
        told(12, x=1.0),
        Evaluated(epoch=0, step=12, metrics={}),
        Finished(worker=WorkerId("alpha", 0), applied_steps=12, checksum=""),
    ],
)
def test_the_steps_after_the_last_timings_count(tmp_path, last):
    """A run ends between two exchanges of timings."""
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", JOINED, told(5, x=1.0), last)
    (found,) = recorded_runs(tmp_path)
    assert found.as_dict()["steps"] == 12


def test_runs_are_put_in_the_order_of_their_newest_loss(tmp_path):
    """One that told none comes before all, as SQLite has it."""
    for name, losses in {"a": (0.1, 3.0), "b": (4.0, 0.2), "c": ()}.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name, JOINED, *(told(5 + at, loss=loss) for at, loss in enumerate(losses)))
    found = choose(recorded_runs(tmp_path), where="", sort="train_loss")
    assert "".join(run.folder.name for run in found) == "cba"
    assert "train_loss 0.2" in list(in_lines(found))[1]


def test_runs_are_put_in_an_order(folder):
    """By the newest result."""
    found = choose(recorded_runs(folder), where="accuracy > 0", sort="accuracy desc")
    assert "".join(run.folder.name for run in found) == "cba"


ODD_NAMES = {
    "capitals": ([{"LR": "1"}, {"lr": "2"}, {"Lr": "3"}], "tag.lr > 1", "bc"),
    "capitals of one run": ([{"LR": "1", "lr": "2"}, {"lr": "2"}], "tag.LR = 2", "ab"),
    "capitals beyond ASCII": ([{"Ü": "1"}, {"ü": "2"}], '"ü" = 2', "b"),
    "rowid": ([{"rowid": "7"}, {"rowid": "8"}], "tag.rowid > 7", "b"),
    "its other names": ([{"oid": "7", "_rowid_": "1"}, {}], "folder > ''", "ab"),
    "one of SQLite's words": ([{"select": "1"}, {"order": "2"}], '"select" = 1', "a"),
    "only marks": ([{"#": "1"}, {"##": "2"}], '"##" = 2', "b"),
    "a name of ours": ([{"steps": "1"}, {"folder": "2"}], "tag.steps = 1", "a"),
    "none": ([{}, {}], "folder = 'b'", "b"),
}


@pytest.mark.parametrize("case", ODD_NAMES)
def test_a_tag_may_have_any_name(tmp_path, case):
    """Whatever it means to SQLite, and in whichever capitals it is written."""
    tags, where, chosen = ODD_NAMES[case]
    for name, own in zip("abc", tags, strict=False):
        (tmp_path / name).mkdir()
        start = RunStarted(run_id=name, command=(), nodes=(), settings={}, tags=own)
        write(tmp_path / name, start, Evaluated(epoch=0, step=1, metrics={"RowID": 0.5}))
    found = choose(recorded_runs(tmp_path), where=where, sort="")
    assert "".join(run.folder.name for run in found) == chosen


@pytest.mark.parametrize(
    "where",
    [
        "acuracy > 1",
        "accuracy >",
        "1); DELETE FROM run; --",
        "(SELECT load_extension('x'))",
        "1) UNION SELECT (99",
        "1) UNION SELECT (-1",
        "1) UNION SELECT (NULL",
        "1) UNION SELECT ('x'",
        "name = '\udcff'",
        "(SELECT count(*) FROM pragma_database_list) > 0",
        "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n)",
    ],
)
def test_what_is_no_condition_is_one_line(folder, where, monkeypatch):
    """It says which columns there are; nothing but the table can be asked, and not for ever."""
    monkeypatch.setattr("hetero_hvd.run.reports.catalogue.MAX_QUESTION_SECONDS", 0.2)
    with pytest.raises(UserError, match=r"there are folder, name, state, .*tag\.lr, .*metric\.acc"):
        choose(recorded_runs(folder), where=where, sort="")


def test_the_command_prints_lines_and_json(folder, capsys):
    """One that cannot be read does not hide the others."""
    assert main(["runs", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert "c  best  the training is finished  lr=0.05  opt=adam" in lines[2]
    assert "accuracy 0.97" in lines[2]
    assert "run.sqlite cannot be read" in lines[4]
    assert main(["runs", str(folder), "--where", "accuracy > 0.96", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["metrics"] == {"accuracy": 0.97}
    assert found["tags"]["lr"] == "0.05"
    assert found["started"] == "1970-01-01 00:16:40"
    assert found["train_loss"] is None
    assert found["samples_per_second"] is None
    assert list(in_lines(recorded_runs(folder)))[3].startswith("d  the training is finished")


@pytest.mark.parametrize("more", [["--where", "nonsense = 1"], ["--sort", "nonsense"]])
def test_a_wrong_question_has_exit_code_2(folder, capsys, more):
    """In one line."""
    assert main(["runs", str(folder), *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such column: nonsense" in line
