"""A run's record can be read where nothing can be written, by all that reads one."""

import shutil
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.config import ClusterConfig, JobConfig, NodeConfig
from hetero_hvd.errors import TryAgainError
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.reader import read_record, run_id_of
from hetero_hvd.run.reports.html import write_report
from hetero_hvd.run.tracking.begin_and_end import write_summary
from hetero_hvd.run.tracking.run_tracker import RunTracker
from tests.kit.screens.shown_run import history, write_run
from tests.kit.small_disk import fill, missing_for_a_disk, small_disk

CONFIG = ClusterConfig(nodes=(NodeConfig(name="alpha"),), job=JobConfig())
pytestmark = pytest.mark.skipif(missing_for_a_disk() is not None, reason="needs root")


def protect(folder):
    """Nothing may be written there."""
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)


def as_closed(folder):
    """As a driver leaves it that has ended."""
    return folder


def as_killed(folder):
    """As a driver leaves it that was killed, or whose disk was full: with a part beside it."""
    path = folder / "run.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("UPDATE events SET at_unix_seconds = at_unix_seconds + 1")
    for end in ("", "-wal"):
        shutil.copyfile(f"{path}{end}", folder / f"copy{end}")
    connection.close()
    for end in ("", "-wal"):
        (folder / f"copy{end}").replace(f"{path}{end}")
    assert (folder / "run.sqlite-wal").stat().st_size
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run's folder."""
    folder = tmp_path_factory.mktemp("written") / "one"
    events = list(history(time.time(), num_exchanges=20))
    write_run(folder, events)
    return folder


COMMANDS = {
    "runs": ["runs"],
    "runs --json": ["runs", "--json"],
    "report": ["report", "one"],
    "report --json": ["report", "one", "--json"],
    "report --at": ["report", "one", "--at", "1s"],
    "compare": ["compare", "one", "one"],
    "cost": ["cost", "one"],
    "advise": ["advise", "one"],
    "export": ["export", "one"],
    "top": ["top", "one"],
}
TROUBLES = {"full": fill, "read-only": protect}
ENDS = {"ended": as_closed, "was killed": as_killed}


@pytest.fixture
def in_folder(monkeypatch, capsys):
    """Gives what all commands say of a run in a folder with runs."""

    def said(folder):
        monkeypatch.chdir(folder)
        return {name: _said(words, capsys) for name, words in COMMANDS.items()}

    return said


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("end", ENDS)
def test_a_record_is_read_where_nothing_can_be_written(tmp_path, in_folder, written, trouble, end):
    """Each command says what it says elsewhere, and changes nothing."""
    with small_disk(tmp_path / "disk", kilobytes=8192) as disk:
        run = ENDS[end](Path(shutil.copytree(written, disk / "runs" / "one")))
        elsewhere = shutil.copytree(disk, tmp_path / "elsewhere")
        before = {path: path.read_bytes() for path in run.iterdir()}
        TROUBLES[trouble](disk)
        found = in_folder(disk)
        assert {path: path.read_bytes() for path in before if path.suffix != ".sqlite-shm"} == {
            path: content for path, content in before.items() if path.suffix != ".sqlite-shm"
        }
        assert run_id_of(run)
    assert found == in_folder(elsewhere)
    assert {name: code for name, (code, *_) in found.items()} == dict.fromkeys(COMMANDS, 0)


def test_where_there_is_room_nowhere_that_is_said(tmp_path, monkeypatch, written):
    """What a killed writer has left beside the record has to be put into it, in a copy."""
    with small_disk(tmp_path / "disk", kilobytes=8192) as disk:
        run = as_killed(Path(shutil.copytree(written, disk / "runs" / "one")))
        fill(disk)
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        words = f"and {disk} cannot be written: No space left on device; make room there, or let"
        with pytest.raises(TryAgainError, match=words):
            read_record(run)


def _said(words, capsys):
    code = main(words)
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.parametrize("before", [None, "the one before"])
def test_a_report_that_finds_no_room_leaves_no_empty_one(tmp_path, written, before):
    """What was there stays; who opens the folder finds no page that shows nothing."""
    said = []
    with small_disk(tmp_path / "disk", kilobytes=2048) as disk:
        folder = disk / "one"
        shutil.copytree(written, folder)
        for name in ("report.html", "summary.json"):
            (folder / name).unlink(missing_ok=True)
            if before is not None:
                (folder / name).write_text(before)
        fill(disk)
        with pytest.raises(TryAgainError, match="No space left on device"):
            write_report(folder)
        tracker = RunTracker(CONFIG, lambda *_: None, None, EventBus())
        write_summary(folder, tracker, exit_code=0, reason="done", say=said.append)
        found = [p.read_text() for p in folder.iterdir() if p.suffix in (".html", ".json")]
    assert found == ([] if before is None else [before] * 2)
    assert said[-1] == "summary.json cannot be written: No space left on device"
