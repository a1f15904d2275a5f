"""Many runs as a table: which had what result, with which tags?"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.watch.run_filters import STATES
from hetero_hvd.errors import UserError
from hetero_hvd.hub.service import open_store
from hetero_hvd.messages import Evaluated, Finished, RunEnded, RunStarted, WorkerId
from hetero_hvd.run.records.run_folder import run_folder
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.reports.catalogue import choose, in_table, recorded_runs
from hetero_hvd.run.reports.facts import OUTCOMES
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
    assert "train_loss 0.2" in in_table(found)[1]


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


def test_the_command_prints_a_table_and_json(folder, capsys):
    """With a heading and a line for each run; one that cannot be read does not hide the others."""
    assert main(["runs", str(folder)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", heading) == [
        "RUN", "STATE", "STARTED (UTC)", "DURATION", "STEPS", "RESULTS", "TAGS", "VERDICT",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines] == ["plain", "b", "best", "d", "e"]
    best = re.split(r"  +", lines[2])
    assert best[:6] == ["best", "finished", "1970-01-01 00:16", "2 s", "9", "accuracy 0.97"]
    assert best[6].startswith("lr=0.05 opt=adam")
    assert "unreadable" in lines[4]
    assert "run.sqlite cannot be read" in lines[4]
    assert main(["runs", str(folder), "--where", "accuracy > 0.96", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["metrics"] == {"accuracy": 0.97}
    assert found["tags"]["lr"] == "0.05"
    assert found["started"] == "1970-01-01 00:16:40"
    assert (found["outcome"], found["duration_seconds"]) == ("finished", 2.0)
    assert found["state"] == "the training is finished"
    assert found["train_loss"] is None
    assert found["samples_per_second"] is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lr[0.1]", ["lr[0.1]"]),
        ("what?", ["what?"]),
        ("b*", ["b*"]),
        ("lr[01]", ["lr0"]),
        ("best*", ["best"]),
        ("[", []),
    ],
)
def test_a_name_with_the_signs_of_a_pattern_is_a_name_first(tmp_path, capsys, name, found):
    """Whether it is that of the folder or of the run; a pattern where none is called so."""
    names = ["lr[0.1]", "what?", "whatx", "b*", "best", "lr0"]
    for at, each in enumerate(names):
        folder = tmp_path / (each if at % 2 else f"{at}-folder")
        folder.mkdir()
        write(folder, RunStarted(run_id="x", command=(), nodes=(), settings={}, name=each))
    assert main(["runs", str(tmp_path), "--name", name, "--json"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)] == found


FILTERS = {
    "--name best": "best",
    "--name b*": "b best",
    "--name a": "plain",
    "--tag opt=adam": "best",
    "--tag lr": "plain b best",
    "--tag lr=0.1 --tag opt=sgd": "plain",
    "--state unreadable": "e",
    "--state finished --where accuracy<0.96 --sort accuracy": "plain b",
}


@pytest.mark.parametrize("line", FILTERS)
def test_runs_are_chosen_by_name_tag_and_state(folder, capsys, line):
    """Each flag leaves fewer of them."""
    assert main(["runs", str(folder), *line.split()]) == 0
    names = [row.split()[0] for row in capsys.readouterr().out.splitlines()[1:]]
    assert " ".join(names) == FILTERS[line]


def test_every_state_can_be_asked_for():
    """The option knows all of them without reading a record."""
    assert STATES == OUTCOMES


ENDINGS = {
    (0, "all workers have finished"): "finished",
    (1, "alpha:0 failed"): "failed",
    (137, "alpha:0 was ended by signal 9"): "failed",
    (143, "stopped by SIGTERM"): "stopped",
    (130, "stopped by SIGINT"): "stopped",
    (129, "stopped by SIGHUP"): "stopped",
    None: "no-end",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_how_a_run_stands_is_one_word(tmp_path, ending):
    """Whoever ended it."""
    end = [] if ending is None else [RunEnded(exit_code=ending[0], reason=ending[1])]
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", JOINED, *end)
    (found,) = recorded_runs(tmp_path)
    assert found.outcome == ENDINGS[ending]


@pytest.mark.parametrize(("ended_at", "seconds"), [(1002.0, 2.0), (1000.0, 0.0), (-2600.0, None)])
def test_no_run_takes_less_than_no_time(tmp_path, ended_at, seconds):
    """Whose clock was set back has a duration that nobody knows."""
    (tmp_path / "a").mkdir()
    recorder = Recorder(tmp_path / "a")
    recorder.observe(1000.0, RunStarted(run_id="a", command=("x",), nodes=(), settings={}))
    recorder.observe(ended_at, RunEnded(exit_code=0, reason="done"))
    recorder.close()
    (found,) = recorded_runs(tmp_path)
    assert found.as_dict()["duration_seconds"] == seconds


@pytest.mark.parametrize("columns", [30, 60, 80, 100, 200])
def test_on_a_terminal_the_table_fits(folder, capsys, monkeypatch, columns):
    """What matters most stays; what was left out is told; a pipe has all of it."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["runs", str(folder)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    is_told = lines[-1].startswith("(no room for")
    assert max(map(len, [heading, *lines[: 5 if is_told else None]])) <= columns
    assert is_told == (columns < 200)
    assert heading.startswith("RUN    STATE")


@pytest.mark.parametrize("more", [["--where", "nonsense = 1"], ["--sort", "nonsense"]])
def test_a_wrong_question_has_exit_code_2(folder, capsys, more):
    """In one line."""
    assert main(["runs", str(folder), *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such column: nonsense" in line


@pytest.mark.parametrize(
    "case", [("y", [], False), ("n", [], True), (None, ["--yes"], False), (None, [], True)]
)
def test_runs_are_deleted_after_a_yes(tmp_path, capsys, monkeypatch, case):
    """Those that are listed; one that goes on, and one that cannot be read, stay."""
    answer, more, stays = case
    for name in ("over", "other"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, JOINED, RunEnded(exit_code=0, reason="done"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_bytes(b"nothing of the kind" * 100)
    monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    with run_folder(str(tmp_path / "runs"), None) as held:
        write(held.path, JOINED)
        chosen = ["runs", str(tmp_path), "--where", "folder != 'other'", "--delete", *more]
        assert main(chosen) == (2 if answer is None and not more else 0)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"other", "broken", "runs", *(["over"] if stays else [])}
    said = capsys.readouterr().out
    assert ("deleted: " in said) is not stays
    assert f"stays: {tmp_path / 'runs'}: a job runs in it" in said
    assert re.search(rf"stays: {tmp_path / 'broken'}: whether it is a run .*cannot be read", said)


LEFT = {
    "of another user": (PermissionError(errno.EACCES, "denied"), 1, "it is of root"),
    "a file in it": (PermissionError(errno.EACCES, "denied", "/x/over/log"), 0, "denied (log)"),
    "a disk that ails": (OSError(errno.EIO, "Input/output error"), 0, "Input/output error"),
    "a link": (None, 0, "is a link; what it leads to stays"),
}


@pytest.mark.parametrize("kind", LEFT)
def test_why_a_run_is_left_is_told(tmp_path, capsys, monkeypatch, kind):
    """Whatever does not let it be deleted, in a line; the others are deleted."""
    error, other_user, words = LEFT[kind]
    for name in ("over", "others/whole"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name, JOINED, RunEnded(exit_code=0, reason="done"))
    if error is None:
        (tmp_path / "over").rename(tmp_path / "others" / "gone")
        (tmp_path / "over").symlink_to(tmp_path / "others" / "gone")
    (tmp_path / "others" / "whole").rename(tmp_path / "whole")
    remove, own = shutil.rmtree, os.geteuid()

    def refused(folder):
        if error is not None and folder.name == "over":
            raise error
        remove(folder)

    monkeypatch.setattr("hetero_hvd.run.records.run_folder.shutil.rmtree", refused)
    monkeypatch.setattr("os.geteuid", lambda: own + other_user)
    monkeypatch.setattr("pathlib.Path.owner", lambda _: "root")
    assert main(["runs", str(tmp_path), "--delete", "--yes"]) == (75 if "disk" in kind else 2)
    said = capsys.readouterr()
    assert words in said.err
    assert f"{tmp_path / 'over'}" in said.err
    assert f"deleted: {tmp_path / 'whole'}" in said.out


EMPTY = {
    "runs": ("no runs in runs", 0),
    "runs --sort steps": ("no runs in runs", 0),
    "runs there --name x": ("no runs in there pass these filters", 0),
    "runs there --state running": ("no runs in there pass these filters", 0),
    "runs nowhere": ("nowhere: No such file or directory; name a folder with runs in it", 2),
    "runs nodes.yaml": ("nodes.yaml: Not a directory; name a folder with runs in it", 2),
    "nodes": ("no nodes in nodes.yaml; --discover looks for those beside it", 0),
    "nodes hosts": ("no nodes in nodes.yaml", 0),
    "record status --store hub": ("no session, no node", 0),
}


@pytest.mark.parametrize(
    ("line", "is_json"),
    [(line, is_json) for line in EMPTY for is_json in (False, True)[: 1 + (line != "nodes hosts")]],
)
def test_an_empty_list_says_so(tmp_path, monkeypatch, capsys, line, is_json):
    """In a line for people, and as an empty list for programs."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs", "there/over"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path / "there" / "over", JOINED, RunEnded(exit_code=0, reason="done"))
    (tmp_path / "nodes.yaml").write_text(
        "job: {discover: true, cluster_key_file: key}\nnodes: []\n"
    )
    open_store(tmp_path / "hub").close()
    words, code = EMPTY[line]
    assert main([*line.split(), *(["--json"] if is_json else [])]) == code
    said = capsys.readouterr()
    if is_json and not code:
        found = json.loads(said.out)
        assert not (found if isinstance(found, list) else [*found["sessions"], *found["nodes"]])
    else:
        assert (said.out + said.err).splitlines() == [f"hetero-hvd: {words}" if code else words]
