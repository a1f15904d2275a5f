"""A folder holds one run, of one driver, for its owner alone."""

import os
import stat
import threading
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.driver.output.console import WorkerOutput
from hetero_hvd.driver.output.json_logs import log_file
from hetero_hvd.errors import JobError
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.records.run_files import private
from hetero_hvd.run.records.run_folder import new_identity, run_folder, run_part
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder

STARTED = RunStarted(run_id="r", command=("train.py", "--token", "x"), nodes=(), settings={})


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """`runs/` and relative folders belong to the test."""
    monkeypatch.chdir(tmp_path)


def train(path):
    """Leave what a run that has trained leaves."""
    (path / "timings.jsonl").write_text("{}\n")


def test_runs_that_start_in_one_second_get_a_folder_each(tmp_path):
    """However many start at once: no two hold the same folder or have the same id."""
    found, all_in, leave = [], threading.Barrier(9), threading.Event()

    def start():
        with run_folder(None, None) as folder:
            found.append(folder)
            all_in.wait(20)
            leave.wait(20)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    all_in.wait(20)
    leave.set()
    for thread in threads:
        thread.join()
    assert len({folder.path for folder in found}) == len({f.run_id for f in found}) == 8
    assert {folder.path.parent.resolve() for folder in found} == {tmp_path / "runs"}


def test_folders_of_one_name_have_runs_of_different_ids():
    """Whoever collects the records of several places can tell the runs apart."""
    with run_folder("a/out", None) as one, run_folder("b/out", None) as other:
        assert one.run_id != other.run_id
        assert one.run_id.startswith("out-")


@pytest.mark.parametrize("kind", ["timings", "segment", "checkpoint"])
def test_a_second_run_in_a_folder_is_refused(tmp_path, kind, capsys):
    """Two runs in one folder would look like one; with --resume of that folder it is one."""
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    if kind == "checkpoint":
        (tmp_path / "out" / "checkpoints" / "step-000000000001-x").mkdir()
    else:
        name = {"timings": "timings.jsonl", "segment": "timings-000001.jsonl"}[kind]
        (tmp_path / "out" / name).write_text("{}\n")
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: alpha}]\n")
    (tmp_path / "x.py").touch()
    assert main(["run", "--output", "out", "--", "x.py"]) == 2
    error = capsys.readouterr().err
    assert "there is a run in it" in error
    assert "--resume out" in error
    assert error.count("\n") == 1
    with run_folder("out", tmp_path / "out") as folder:
        assert folder.path.name == "out"


PLACES = {
    "a name": ("out", "out"),
    "a slash behind it": ("out/", "out"),
    "here": (".", "here"),
    "above": ("below/..", "here"),
    "a path": ("a/b", "a/b"),
}


@pytest.mark.parametrize("case", PLACES)
def test_without_a_driver_the_next_folder_is_beside_the_one_that_is_taken(
    tmp_path, monkeypatch, case
):
    """However that is written, and so is the one of another node."""
    output, name = PLACES[case]
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    base = tmp_path if name == "here" else tmp_path / "here"
    for number in ("", "-2", "-3"):
        run = new_identity(output, "a")
        with run_part(run, "a") as folder, run_part(run, "b") as other:
            assert folder.path.resolve() == base / f"{name}{number}"
            assert other.path.resolve() == base / f"{name}.b{number}"
            train(folder.path)
            train(other.path)


@pytest.mark.parametrize("output", ["/", "//", "/.", "/..", "/usr/.."])
def test_the_root_is_no_folder_of_a_run(output):
    """It has no name, and is nobody's alone."""
    before = set(Path("/").iterdir())
    run = new_identity(output, "a")
    with pytest.raises(JobError, match="has no name"), run_part(run, "a"):
        pass
    with pytest.raises(JobError, match="has no name"), run_folder(output, None):
        pass
    assert set(Path("/").iterdir()) == before


@pytest.mark.parametrize("output", ["/", "//", "/./", "/.."])
def test_the_root_is_refused_as_a_setting(tmp_path, capsys, output):
    """In one line, before anything is done."""
    (tmp_path / "x.py").touch()
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: alpha}]\n")
    assert main(["run", "--output", output, "--", "x.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"found '{output}', must be a path" in line


def test_resuming_another_run_is_no_leave_to_mix(tmp_path):
    """--resume names the run to go on from; only in its own folder may there be one."""
    for name in ("one", "two"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        train(tmp_path / name)
    with pytest.raises(JobError, match="there is a run in it"), run_folder("one", tmp_path / "two"):
        pass


def test_a_try_that_trained_nothing_is_forgotten():
    """After a mistake in the script the same command works, and its records are of one run."""
    with run_folder("out", None) as folder:
        recorder = Recorder(folder.path)
        recorder.observe(0.0, STARTED)
        recorder.close()
        TimingLog(folder.path).close()
    with run_folder("out", None) as folder:
        assert not (folder.path / "run.sqlite").exists()


def test_a_folder_has_one_driver_at_a_time():
    """Even before the first step; when the other has ended, in whatever way, it is free."""
    with (
        run_folder("out", None),
        pytest.raises(JobError, match="another job runs in it"),
        run_folder("out", None),
    ):
        pass
    with run_folder("out", None):
        pass


def test_what_a_run_writes_is_private(tmp_path):
    """The folder and, where it was there before, each file: also under a generous umask."""
    (tmp_path / "out").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        with run_folder(None, None) as fresh, run_folder("out", None) as folder:
            write_all(folder.path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh.path.stat().st_mode) == 0o700
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert names >= {"run.sqlite", "timings.jsonl", "driver.log", "alpha-0.log"}
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in files} == dict.fromkeys(
        names, "0o0"
    )


def write_all(folder):
    """Let everything that writes into a run's folder do so."""
    recorder = Recorder(folder)
    recorder.observe(0.0, STARTED)
    recorder.close()
    TimingLog(folder).close()
    WorkerOutput(None, folder / "logs" / "alpha-0.log", "").close()
    with log_file(folder / "logs" / "driver.log"):
        pass


@pytest.mark.parametrize(
    "name",
    ["run.sqlite", "run.sqlite-wal", "timings.jsonl", "summary.json", "logs/driver.log", ".lock"],
)
def test_planted_links_are_not_followed(tmp_path, name):
    """A link in the place of a file of ours is refused at the start, and by each opener."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out" / "logs").mkdir(parents=True)
    (tmp_path / "out" / name).symlink_to(victim)
    with pytest.raises(JobError, match="is a link"), run_folder("out", None):
        pass
    with pytest.raises(OSError, match="symbolic links"):
        os.close(private(tmp_path / "out" / name, os.O_WRONLY))
    assert victim.read_text() == "precious"


def test_checkpoints_may_be_on_another_disk(tmp_path):
    """A link to a folder is how one puts them there."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoints").symlink_to(tmp_path / "disk")
    with run_folder("out", None) as folder:
        assert folder.path.is_dir()


@pytest.mark.parametrize("output", ["file", "file/out", "/proc/none/out"])
def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, output):
    """What, and why."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(JobError, match=r"job\.output: .* cannot be used: "),
        run_folder(output, None),
    ):
        pass
