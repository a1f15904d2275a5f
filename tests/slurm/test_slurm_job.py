"""What `hetero-hvd run --slurm` makes of its job and of the options."""

import os
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.train.slurm_job import SlurmJob
from hetero_hvd.config.setting import ENVIRONMENT_PREFIX
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.errors import UserError
from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.run.records.run_folder import run_folder
from hetero_hvd.slurm import requeue

NAME = f"slurm-kit-{os.getuid()}-12"


class Given:
    """Options as they were given; all others were not."""

    nodes_files = None
    requeue = True

    def __getattr__(self, name):
        return None


@pytest.fixture(autouse=True)
def inside(programs, monkeypatch, tmp_path):
    """This is a Slurm job of one node."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "kit")
    monkeypatch.chdir(tmp_path)
    return programs


def test_all_starts_of_a_job_have_one_folder_and_one_name():
    """The first one goes on from nothing; nothing has to be there."""
    job = SlurmJob(Given())
    first = job.resumed(Path("auto"))
    assert (first.folder, first.checkpoints, first.name) == (None, "", NAME)
    assert job.nodes_file.current.job.output == f"runs/{NAME}"
    with run_folder(job.nodes_file.current.job.output, first.folder) as folder:
        (folder.path / "timings.jsonl").write_text("a step was trained\n")
    again = SlurmJob(Given())
    second = again.resumed(None)
    assert (second.folder, second.name) == (Path(f"runs/{NAME}"), NAME)
    with run_folder(again.nodes_file.current.job.output, second.folder) as folder:
        assert folder.path == Path(f"runs/{NAME}")


def test_the_users_folder_is_taken(monkeypatch):
    """For all starts alike."""
    monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}OUTPUT", "out")
    job = SlurmJob(Given())
    Path("out").mkdir()
    assert job.resumed(Path("auto")).folder == Path("out")
    assert job.nodes_file.current.job.output == "out"


KEPT_THERE = "with --requeue each start would begin there again"
RESUMED = {
    "nothing": (None, {}, False, None),
    "auto": (Path("auto"), {}, False, ""),
    "requeued": (None, {}, True, ""),
    "requeued, auto": (Path("auto"), {}, True, ""),
    "a run": (Path("old"), {}, False, "old/checkpoints"),
    "a run, kept elsewhere": (Path("old"), {"OUTPUT": "new"}, False, "old/checkpoints"),
    "an address": ("s3://b/p", {}, False, "s3://b/p"),
    "requeued, a run": (Path("old"), {}, True, "old/checkpoints"),
    "requeued, a run, said twice": (Path("old"), {"OUTPUT": "old"}, True, "old/checkpoints"),
    "requeued, kept elsewhere": (Path("old"), {"OUTPUT": "new"}, True, KEPT_THERE),
    "requeued, a store": (Path("old"), {"CHECKPOINT_URL": "s3://b/p"}, True, KEPT_THERE),
    "requeued, an address": ("s3://b/p", {}, True, KEPT_THERE),
}


@pytest.mark.parametrize(
    ("place", "settings", "is_requeued", "found"), RESUMED.values(), ids=RESUMED
)
def test_a_job_that_starts_again_goes_on(monkeypatch, place, settings, is_requeued, found):
    """Whatever --resume says, no later start begins where the first one did."""
    for name, value in settings.items():
        monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}{name}", value)
    Path("old/checkpoints").mkdir(parents=True)
    given = Given()
    given.requeue = is_requeued
    job = SlurmJob(given)
    if found == KEPT_THERE:
        with pytest.raises(UserError, match=found) as error:
            job.resumed(place)
        assert "\n" not in str(error.value)
        return
    earlier = job.resumed(place)
    if found is None:
        assert earlier is None
    else:
        assert earlier.checkpoints.endswith(found)
        assert earlier.name == ("" if found else NAME)


def test_the_name_is_one_of_a_run_in_a_store():
    """Checkpoints of other jobs in the same place are not taken."""
    assert CheckpointSettings(folder="s3://b/p", run=SlurmJob(Given()).resumed(None).name)


@pytest.mark.parametrize(
    ("is_called_off", "wanted", "is_asked"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
def test_a_job_is_requeued_if_it_had_to_end_and_that_is_wanted(
    inside, capsys, is_called_off, wanted, is_asked
):
    """Not if the training is finished, or has failed: that would be the same again."""
    given = Given()
    given.requeue = wanted
    job = SlurmJob(given)
    job.ended(JobResult(143, "ended by SIGTERM", is_called_off=is_called_off))
    assert (inside / "scontrol.requeued").exists() is is_asked
    assert capsys.readouterr().out == "job 12 is requeued\n" * is_asked


@pytest.mark.parametrize("is_task", [True, False])
def test_a_shell_between_slurm_and_the_driver_is_told(capsys, monkeypatch, is_task):
    """It would not wait for the last checkpoint."""
    monkeypatch.setenv("SLURM_TASK_PID", str(os.getpid()) if is_task else "1")
    SlurmJob(Given())
    assert capsys.readouterr().out.count("write 'exec hetero-hvd run ...' there") == (not is_task)


@pytest.mark.parametrize(("variable", "own"), [(None, "fast1"), ("fast2", "fast2"), ("x", "fast1")])
def test_the_drivers_node_is_one_of_the_job(programs, monkeypatch, variable, own):
    """The variable is left from a job around this one, where salloc is called in that."""
    (programs / "squeue.jobs").write_text("12|12|RUNNING|10:00|fast[1-2]\n")
    monkeypatch.setenv("SLURM_NO_KILL", "1")
    if variable is not None:
        monkeypatch.setenv("SLURMD_NODENAME", variable)
    assert SlurmJob(Given())._own_node() == own


def test_nodes_that_are_not_granted_are_named(capsys):
    """In one line; of those that are, what the file says counts."""
    Path("some.yaml").write_text("nodes: [{name: fast1, slots: 1}, {name: gpu9}]")
    Path("more.yaml").write_text("nodes: [{name: gpu8}, {name: gpu9}]")
    given = Given()
    given.nodes_files = [Path("some.yaml"), Path("more.yaml")]
    job = SlurmJob(given)
    assert [node.name for node in job.nodes_file.current.nodes] == ["fast1"]
    assert capsys.readouterr().out == (
        "note: not granted by Slurm, so that nothing of them in -f has an effect: gpu9, gpu8\n"
    )
    given.nodes_files = [Path("many.yaml")]
    Path("many.yaml").write_text(f"nodes: {[{'name': f'n{i}'} for i in range(9)]}")
    SlurmJob(given)
    assert capsys.readouterr().out.endswith("an effect: n0, n1, n2, n3, n4, n5, n6, n7, ...\n")


def test_what_slurm_refuses_is_told(inside, capsys, monkeypatch):
    """The training has ended in order all the same."""
    monkeypatch.setattr(requeue, "DELAYS_SECONDS", ())
    job = SlurmJob(Given())
    (inside / "scontrol").write_text("#!/bin/sh\necho no such job >&2; exit 1\n")
    job.ended(JobResult(143, "ended by SIGTERM", is_called_off=True))
    assert "the job is not requeued: scontrol requeue 12: no such job" in (capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--requeue"], "--requeue: has no effect without --slurm; add that, or leave it out"),
        (["--resume", "auto"], "--resume auto: starts belong together by their folder, or by "),
    ],
)
def test_options_for_a_slurm_job_are_refused_elsewhere(capsys, tmp_path, monkeypatch, words, line):
    """With exit code 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.yaml").write_text("nodes: [{name: alpha}]\n")
    assert main(["run", *words, "--", "train.py"]) == 2
    assert capsys.readouterr().err.startswith(f"hetero-hvd: {line}")


def test_outside_of_a_slurm_job_it_says_so(capsys, monkeypatch):
    """In one line, with exit code 2."""
    monkeypatch.delenv("SLURM_JOB_ID")
    assert main(["run", "--slurm", "--", "train.py"]) == 2
    assert "call it in a script of sbatch or in a shell of salloc" in capsys.readouterr().err
