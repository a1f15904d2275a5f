"""A run is named as one thinks of it."""

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.commands import COMMANDS
from hetero_hvd.cli.parsing import parser_of
from hetero_hvd.cli.watch.run_argument import run_of
from hetero_hvd.driver.network import control_socket
from hetero_hvd.errors import UserError
from hetero_hvd.messages import RunEnded, RunStarted
from hetero_hvd.run.records.run_folder import run_folder
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two recorded runs in runs/, the first one the newest, though not its file; one elsewhere."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("elsewhere", "runs/b", "runs/a")):
        (tmp_path / name).mkdir(parents=True)
        recorder = Recorder(tmp_path / name)
        recorder.observe(
            float(number), RunStarted(run_id=name, command=("x",), nodes=(), settings={})
        )
        recorder.close()
    os.utime(tmp_path / "runs" / "b" / "run.sqlite")
    os.utime(tmp_path / "runs" / "a" / "run.sqlite", (1, 1))
    (tmp_path / "runs" / "no run").mkdir()
    (tmp_path / "runs" / "no record").mkdir()
    (tmp_path / "runs" / "no record" / "run.sqlite").write_bytes(b"nothing of the kind")


@pytest.mark.parametrize("text", [".", "", "..", "there"])
def test_a_folder_without_a_run_is_never_an_empty_report(text, tmp_path, monkeypatch, capsys):
    """However it is named."""
    (tmp_path / "in" / "there").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "in")
    assert main(["report", text]) == 2
    assert "no run is recorded there" in capsys.readouterr().err


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("elsewhere", "elsewhere"),
        ("runs/b", "runs/b"),
        ("b", "runs/b"),
        ("latest", "runs/a"),
        ("neither", "neither"),
    ],
)
def test_a_run_is_found_by_path_name_or_age(text, found, capsys):
    """What is there as it stands comes first; a name that is nowhere is told as it was given."""
    assert run_of(text) == Path(found)
    code = main(["report", text])
    printed = capsys.readouterr()
    if text == "neither":
        assert (code, printed.err.count("\n")) == (2, 1)
        assert "neither: no run is recorded there" in printed.err
    else:
        assert printed.out.startswith(f"run {found}: no end recorded\n")


NAMES = {
    "monday-1": "the first",
    "monday-2": "baseline",
    "monday-10": "baseline",
    "tuesday": "monday",
    "wednesday": "",
}
MEANT = {
    "wednesday": "wednesday",
    "w": "wednesday",
    "the first": "monday-1",
    "the f": "monday-1",
    "monday-1": "monday-1",  # the whole name of one, the beginning of another
    "monday": "tuesday",  # the whole name of one, the beginning of three
    "baseline": ["monday-10", "monday-2"],
    "b": ["monday-10", "monday-2"],
    "mon": ["monday-1", "monday-10", "monday-2", "tuesday"],
    "day": None,
    "no record": None,
}


@pytest.fixture
def named_runs(tmp_path, monkeypatch):
    """Runs with names, of which some begin alike, and a folder that is no run."""
    monkeypatch.chdir(tmp_path)
    for number, (folder, name) in enumerate(NAMES.items()):
        path = tmp_path / "runs" / folder
        path.mkdir(parents=True)
        recorder = Recorder(path)
        started = RunStarted(run_id=folder, command=(), nodes=(), settings={}, name=name)
        recorder.observe(float(number), started)
        recorder.close()
    (tmp_path / "runs" / "no records").mkdir()


@pytest.mark.usefixtures("named_runs")
@pytest.mark.parametrize("text", MEANT)
def test_a_name_or_its_beginning_is_enough_where_it_is_clear(text, capsys):
    """Else all that could be meant are listed, and nothing is done."""
    meant = MEANT[text]
    if isinstance(meant, list):
        with pytest.raises(UserError) as refused:
            run_of(text)
        assert str(refused.value) == f"{text}: could be {', '.join(meant)}; write more of the name"
        assert main(["report", text]) == 2
        assert capsys.readouterr().err == f"hetero-hvd: {refused.value}\n"
    else:
        assert run_of(text) == (Path("runs") / meant if meant else Path(text))


OF_A_RUN = {
    "report": ["report"],
    "top": ["top", "--once"],
    "cost": ["cost"],
    "export": ["export"],
    "advise": ["advise"],
    "compare": ["compare", "tuesday"],
    "drain": ["drain", "alpha"],
    "trace": ["trace"],
    "run": ["run", "--resume"],
    "trial": ["trial", "--resume"],
}


def test_the_table_has_every_command_that_is_about_a_run():
    """Nobody reads the name of a run in a way of its own."""
    takes = {name for name in COMMANDS if "RUN" in parser_of(name).format_help().split("usage")[1]}
    assert takes == OF_A_RUN.keys()


@pytest.mark.usefixtures("named_runs")
@pytest.mark.parametrize("command", OF_A_RUN)
def test_every_command_refuses_what_could_be_several_runs(command, capsys):
    """In the same words."""
    more = ["--", "train.py"] if command in ("run", "trial") else []
    assert main([*OF_A_RUN[command], "b", *more]) == 2
    assert "b: could be monday-10, monday-2; write more" in capsys.readouterr().err


@pytest.mark.usefixtures("named_runs")
@pytest.mark.parametrize("command", ["report", "top", "cost", "export", "advise"])
def test_without_a_name_it_is_the_latest(command, capsys):
    """Of commands that only look."""
    assert main(OF_A_RUN[command]) == main([*OF_A_RUN[command], "wednesday"])
    capsys.readouterr()


@pytest.mark.usefixtures("named_runs")
def test_what_is_listed_is_told_to_programs_too(capsys):
    """Of runs and how they differ; what is not known is null."""
    assert main(["compare", "the first", "wednesday", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [run["folder"] for run in compared["runs"]] == ["monday-1", "wednesday"]
    assert compared["different"] == {"name": ["the first", "none"]}
    assert compared["fingerprints"] is None
    assert main(["runs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["folder"] for run in listed] == sorted(NAMES)
    assert compared["runs"] == [listed[0], listed[-1]]
    TimingLog(Path("runs") / "wednesday").close()
    assert main(["top", "w", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["run_id"], state["state"], state["loss"]) == (
        "wednesday",
        "no end recorded",
        None,
    )


@pytest.mark.usefixtures("runs")
def test_top_shows_the_latest_whatever_was_looked_at(capsys):
    """SQLite's own files beside a record are new each time that somebody reads it."""
    for run in ("a", "b"):
        TimingLog(Path("runs", run)).close()
        (Path("runs") / run / "timings.jsonl").touch()
    os.utime("runs/b")
    assert main(["top", "--once"]) == 0
    assert capsys.readouterr().out.startswith("runs/a  no end recorded")


@pytest.mark.parametrize("command", ["report", "top", "cost", "export"])
def test_what_no_folder_can_be_called_is_one_line(capsys, command):
    """Such as a name that is too long."""
    more = ["--once"] if command == "top" else []
    assert main([command, "a" * 300, *more]) == 2
    assert "File name too long; name the output folder" in capsys.readouterr().err


ORDERS = {
    "by name": (["b"], "runs/b"),
    "by path": (["elsewhere"], "elsewhere"),
    "latest": (["latest"], "runs/a"),
    "the old way": (["--output", "runs/b"], "runs/b"),
    "the old way, by name": (["--output", "b"], "runs/b"),
    "that still runs": ([], "runs/b"),
    "two": (["a", "--output", "b"], None),
}


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("words", [["drain", "alpha"], ["trace"]], ids=lambda words: words[0])
@pytest.mark.parametrize("way", ORDERS)
def test_an_order_names_its_run_as_the_other_commands_do(monkeypatch, capsys, words, way):
    """Without a word it is for the newest that takes orders."""
    more, folder = ORDERS[way]
    told = []
    monkeypatch.setattr(control_socket, "order", lambda *order: told.append(order) or "done")
    monkeypatch.setattr(control_socket, "newest_run", lambda: Path("runs/b"))
    code = main([*words, *more])
    if folder is None:
        assert (code, told) == (2, [])
        assert "name one running job" in capsys.readouterr().err
    else:
        ((found, name, _),) = told
        assert (code, found, name) == (0, Path(folder), words[0])


STATES = {
    "runs": ((), True, "starting"),
    "was killed": ((), False, "no end recorded"),
    "has ended": ((RunEnded(exit_code=0, reason="done"),), False, "ended"),
    "has ended, and is gone on with": ((RunEnded(exit_code=0, reason="done"),), True, "ended"),
}


@pytest.mark.parametrize("case", STATES)
def test_top_tells_whether_a_run_without_a_page_goes_on(tmp_path, capsys, case):
    """It looks again and again at one that does."""
    events, is_held, state = STATES[case]
    with run_folder(str(tmp_path / "x"), None) as folder:
        recorder = Recorder(folder.path)
        started = RunStarted(run_id=folder.run_id, command=(), nodes=(), settings={})
        for event in (started, *events):
            recorder.observe(1.0, event)
        recorder.close()
        TimingLog(folder.path).close()
        if is_held:
            assert main(["top", "--once", str(folder.path)]) == 0
    if not is_held:
        assert main(["top", str(folder.path)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder.run_id}  {state}  ")


REPORTED = {
    "runs": ((), True, "running", "running"),
    "was killed": ((), False, "no end recorded", "no-end"),
    "has ended": ((RunEnded(exit_code=0, reason="done"),), False, "done", "finished"),
    "has ended, and is held": ((RunEnded(exit_code=0, reason="done"),), True, "done", "finished"),
}


@pytest.mark.parametrize("case", REPORTED)
def test_a_report_tells_whether_a_run_goes_on(tmp_path, capsys, case):
    """And so does the list of the runs."""
    events, is_held, state, word = REPORTED[case]
    with ExitStack() as stack:
        folder = stack.enter_context(run_folder(str(tmp_path / "x"), None))
        recorder = Recorder(folder.path)
        started = RunStarted(run_id=folder.run_id, command=(), nodes=(), settings={})
        for event in (started, *events):
            recorder.observe(1.0, event)
        recorder.close()
        if not is_held:
            stack.close()
        assert main(["report", str(folder.path)]) == 0
        assert capsys.readouterr().out.startswith(f"run {folder.run_id}: {state}\n")
        assert main(["runs", str(tmp_path)]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["x", word]


def test_there_may_be_no_run_at_all(tmp_path, monkeypatch, capsys):
    """Then `latest` is a name like any other."""
    monkeypatch.chdir(tmp_path)
    assert main(["top", "--once"]) == 2
    assert "latest: no run is recorded there" in capsys.readouterr().err
    assert main(["report", "latest"]) == 2
    assert "latest: no run is recorded there" in capsys.readouterr().err


RESUMED = {
    "as it was called": ([], {}, "long", {"lr": "0.1"}),
    "another name": (["--name", "again"], {}, "again", {"lr": "0.1"}),
    "a name of the environment": ([], {"HETERO_HVD_NAME": "again"}, "again", {"lr": "0.1"}),
    "another value, and a tag more": (
        ["--tag", "lr=0.2", "--tag", "opt=adam"],
        {},
        "long",
        {"lr": "0.2", "opt": "adam"},
    ),
}


@pytest.mark.parametrize("case", RESUMED.values(), ids=RESUMED.keys())
def test_a_run_that_is_gone_on_with_keeps_its_name_and_tags(tmp_path, monkeypatch, case):
    """Unless others are given."""
    more, environment, name, tags = case
    folder = tmp_path / "runs" / "a"
    (folder / "checkpoints").mkdir(parents=True)
    recorder = Recorder(folder)
    before = {"run_id": "a-1", "command": ("x",), "nodes": (), "settings": {}}
    recorder.observe(1.0, RunStarted(name="long", tags={"lr": "0.1"}, **before))
    recorder.close()
    monkeypatch.chdir(tmp_path)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    (tmp_path / "train.py").touch()
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: a, devices: []}]\n")
    jobs = []
    monkeypatch.setattr("hetero_hvd.driver.job.run_job", lambda *_, **told: jobs.append(told) or 0)
    assert main(["run", "--resume", "long", *more, "train.py"]) == 0
    assert jobs[0]["labels"] == (name, tags)
