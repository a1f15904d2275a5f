"""A run is named as one thinks of it."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.watch.run_argument import run_of
from hetero_hvd.driver.network import control_socket
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
    "runs": ((), True, "running"),
    "was killed": ((), False, "no end recorded"),
    "has ended": ((RunEnded(exit_code=0, reason="done"),), False, "done"),
    "has ended, and is held": ((RunEnded(exit_code=0, reason="done"),), True, "done"),
}


@pytest.mark.parametrize("case", REPORTED)
def test_a_report_tells_whether_a_run_goes_on(tmp_path, capsys, case):
    """And so does the list of the runs."""
    events, is_held, state = REPORTED[case]
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
        assert capsys.readouterr().out.startswith(f"x  {state}  ")


def test_there_may_be_no_run_at_all(tmp_path, monkeypatch, capsys):
    """Then `latest` is a name like any other."""
    monkeypatch.chdir(tmp_path)
    assert main(["top", "--once"]) == 2
    assert "latest: no run is recorded there" in capsys.readouterr().err
    assert main(["report", "latest"]) == 2
    assert "latest: no run is recorded there" in capsys.readouterr().err
