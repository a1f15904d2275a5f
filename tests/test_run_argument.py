"""A run is named as one thinks of it."""

import os
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.watch.run_argument import run_of
from hetero_hvd.messages import RunStarted
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
    assert capsys.readouterr().out.startswith("runs/a  ended")


@pytest.mark.parametrize("command", ["report", "top", "cost", "export"])
def test_what_no_folder_can_be_called_is_one_line(capsys, command):
    """Such as a name that is too long."""
    more = ["--once"] if command == "top" else []
    assert main([command, "a" * 300, *more]) == 2
    assert "File name too long; name the output folder" in capsys.readouterr().err


def test_there_may_be_no_run_at_all(tmp_path, monkeypatch, capsys):
    """Then `latest` is a name like any other."""
    monkeypatch.chdir(tmp_path)
    assert main(["top", "--once"]) == 2
    assert "latest: no run is recorded there" in capsys.readouterr().err
    assert main(["report", "latest"]) == 2
    assert "latest: no run is recorded there" in capsys.readouterr().err
