"""What `hetero-hvd run --slurm` makes of its job and of the options."""

import os
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.train.slurm_job import SlurmJob
from hetero_hvd.config.setting import ENVIRONMENT_PREFIX
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.messages.launch import CheckpointSettings
from hetero_hvd.run.records.run_folder import run_folder

ABOUT = "JobId=12 JobState=RUNNING Requeue=1 BatchFlag=1\n"


class Given:
    """Options as they were given; all others were not."""

    nodes_files = None
    requeue = True

    def __getattr__(self, name):
        return None


@pytest.fixture(autouse=True)
def inside(programs, monkeypatch, tmp_path):
    """This is a Slurm job of one node."""
    (programs / "squeue.answer").write_text("10:00\n")
    (programs / "scontrol.job").write_text(ABOUT)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "fast1")
    monkeypatch.chdir(tmp_path)
    return programs


def test_all_starts_of_a_job_have_one_folder_and_one_name():
    """The first one goes on from nothing; nothing has to be there."""
    job = SlurmJob(Given())
    first = job.same_run()
    assert (first.folder, first.checkpoints, first.name) == (None, "", "slurm-12")
    assert job.nodes_file.current.job.output == "runs/slurm-12"
    with run_folder(job.nodes_file.current.job.output, first.folder) as folder:
        (folder.path / "timings.jsonl").write_text("a step was trained\n")
    again = SlurmJob(Given())
    second = again.same_run()
    assert (second.folder, second.name) == (Path("runs/slurm-12"), "slurm-12")
    with run_folder(again.nodes_file.current.job.output, second.folder) as folder:
        assert folder.path == Path("runs/slurm-12")


def test_the_users_folder_is_taken(monkeypatch):
    """For all starts alike."""
    monkeypatch.setenv(f"{ENVIRONMENT_PREFIX}OUTPUT", "out")
    job = SlurmJob(Given())
    Path("out").mkdir()
    assert job.same_run().folder == Path("out")
    assert job.nodes_file.current.job.output == "out"


def test_the_name_is_one_of_a_run_in_a_store():
    """Checkpoints of other jobs in the same place are not taken."""
    assert CheckpointSettings(folder="s3://b/p", run=SlurmJob(Given()).same_run().name)


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


def test_what_slurm_refuses_is_told(inside, capsys):
    """The training has ended in order all the same."""
    job = SlurmJob(Given())
    (inside / "scontrol").write_text("#!/bin/sh\necho no such job >&2; exit 1\n")
    job.ended(JobResult(143, "ended by SIGTERM", is_called_off=True))
    assert "the job is not requeued: scontrol show job --oneliner 12: no such job" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--requeue"], "--requeue: has no effect without --slurm; add that, or leave it out"),
        (["--resume", "auto"], "--resume auto: only a Slurm job has starts that belong together"),
    ],
)
def test_options_for_a_slurm_job_are_refused_elsewhere(capsys, words, line):
    """With exit code 2."""
    assert main(["run", *words, "--", "train.py"]) == 2
    assert capsys.readouterr().err.startswith(f"hetero-hvd: {line}")


def test_outside_of_a_slurm_job_it_says_so(capsys, monkeypatch):
    """In one line, with exit code 2."""
    monkeypatch.delenv("SLURM_JOB_ID")
    assert main(["run", "--slurm", "--", "train.py"]) == 2
    assert "call it in a script of sbatch or in a shell of salloc" in capsys.readouterr().err
