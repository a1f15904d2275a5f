"""What `hetero-hvd run --slurm-agents` makes of its folder, and of its agents at the end."""

import errno
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.train.slurm_agents import SlurmAgents
from hetero_hvd.driver.ending import JobResult
from hetero_hvd.driver.termination import Termination
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.security.cluster_key import make_key

CALLED_OFF = JobResult(143, "ended by SIGTERM", is_called_off=True)
INSIDE = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "fast1"}


class Given:
    """Options as they were given; all others were not."""

    nodes_files = None

    def __init__(self, folder, **given):
        self.__dict__.update(given, slurm_agents=folder)

    def __getattr__(self, name):
        return None


@pytest.fixture
def folder(arrays, monkeypatch):
    """Written by `hetero-hvd deploy slurm`; this is a Slurm job."""
    make_key(arrays / "key")
    text = f'job: {{discover: true, cluster_key_file: "{arrays / "key"}"}}\nnodes: []\n'
    (arrays / "nodes.yaml").write_text(text)
    for name, value in INSIDE.items():
        monkeypatch.setenv(name, value)
    return arrays


def test_all_starts_are_one_run(folder):
    """In the folder, under a name that no other folder has; the listening port is a free one."""
    agents = SlurmAgents(Given(folder))
    first = agents.same_run()
    assert (first.folder, first.checkpoints) == (None, "")
    agents.close()
    (folder / "run").mkdir()
    again = SlurmAgents(Given(folder))
    second = again.same_run()
    assert (second.folder, second.name) == (folder / "run", first.name)
    assert again.nodes_file.current.job.listen > 0
    assert Path(again.nodes_file.current.job.output) == folder / "run"


def test_a_name_that_was_not_written_as_a_whole_is_none(folder, monkeypatch):
    """A full disk, or an end at that moment: the next start gives the run its name."""
    agents = SlurmAgents(Given(folder))
    with monkeypatch.context() as full:
        full.setattr(Path, "replace", lambda *_: full_disk())
        with pytest.raises(JobError, match="No space left"):
            agents.same_run()
    assert re.fullmatch(r"a-b-[0-9a-f]{8}", agents.same_run().name)  # the folder is called "a b"
    agents.close()


def full_disk():
    """What the system says."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_folder_has_one_driver(folder, programs):
    """Who comes second touches nothing: neither the address nor the agents."""
    with Termination().keeping(SlurmAgents(Given(folder))):
        told = (folder / "driver.address").read_text()
        with pytest.raises(JobError, match="its driver runs already"):
            SlurmAgents(Given(folder))
        assert (folder / "driver.address").read_text() == told
        assert not (programs / "scancel.asked").exists()
    assert not (folder / "driver.address").exists()


def test_a_signal_while_agents_are_submitted_leaves_nothing(folder, programs, monkeypatch):
    """SIGTERM and Ctrl-C come at any time, also before the driver trains."""
    agents = SlurmAgents(Given(folder))
    asked = programs / "scancel.asked"
    monkeypatch.setattr(agents._jobs, "submit", lambda: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(agents._jobs, "present", lambda: {} if asked.exists() else {"7": "cpu"})
    with pytest.raises(SystemExit), Termination() as termination, termination.keeping(agents):
        pass
    assert asked.exists()
    assert not (folder / "driver.address").exists()


ENDINGS = {
    "finished": (JobResult(0, "done", is_orderly=True), "RUNNING", 0, True, "cancelled"),
    "failed": (JobResult(1, "failed"), "RUNNING", 0, True, "cancelled"),
    "Ctrl-C": (JobResult(130, "ended by SIGINT"), "RUNNING", 0, False, "cancelled"),
    "the time limit": (CALLED_OFF, "RUNNING", 1, True, "requeued"),
    "preempted": (CALLED_OFF, "COMPLETING", 1, True, "left"),
    "cancelled": (CALLED_OFF, "COMPLETING", 0, True, "cancelled"),
    "SIGTERM on a login node": (CALLED_OFF, "RUNNING", 0, False, "left"),
    "SIGTERM under salloc": (CALLED_OFF, "RUNNING salloc", 0, True, "left"),
    "an error": (None, "RUNNING", 0, True, "cancelled"),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_agents_stay_only_for_another_start(folder, programs, monkeypatch, capsys, case):
    """Whoever goes on needs them; in all other endings they would hold GPUs for nobody."""
    result, state, restarts, is_inside, expected = ENDINGS[case]
    if not is_inside:
        monkeypatch.delenv("SLURM_JOB_ID")
    state, _, salloc = state.partition(" ")
    about = f"JobId=12 Requeue=1 Restarts={{}} BatchFlag={0 if salloc else 1} Reboot=0\n"
    (programs / "scontrol.job").write_text(about.format(3))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "99")  # of the job in which sbatch was called
    (programs / "squeue.jobs").write_text(f"12|12|{state}|10:00|fast1\n")
    own = "".join(
        f"{n} N/A RUNNING hetero-hvd:{pool}:{folder}\n" for n, pool in ((7, "cpu"), (8, "gpu"))
    )
    (programs / "squeue.answer").write_text(own)
    agents = SlurmAgents(Given(folder))
    with suppress(KeyError), Termination().keeping(agents):
        assert not (programs / "sbatch.asked").exists()  # they are there
        (programs / "scontrol.job").write_text(about.format(3 + restarts))
        agents.ended({"an error": result}["no result"] if result is None else result)
    is_cancelled = (programs / "scancel.asked").exists()
    is_requeued = (programs / "scontrol.requeued").exists()
    assert (is_cancelled, is_requeued) == (expected == "cancelled", expected == "requeued")
    assert ("agents gpu are ended: job 8 is cancelled" in capsys.readouterr().out) == is_cancelled


@pytest.mark.parametrize("jobs", ["", "12|12|COMPLETED|0:00|fast1\n", "12|12|PENDING|0:00|\n"])
def test_a_variable_of_another_time_is_no_job(folder, programs, capsys, jobs):
    """As in a shell that has outlived its allocation: the driver follows none, and says so."""
    (programs / "squeue.jobs").write_text(jobs)
    with Termination().keeping(SlurmAgents(Given(folder))) as agents:
        assert agents.must_end() == ""
    assert "note: this driver follows no Slurm job of its own: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["f\udcff", "100%", 'a"b', "a\nb"])
def test_a_folder_that_no_comment_of_a_job_can_name_is_refused(folder, name):
    """Its jobs would be nobody's: submitted at each start, and never cancelled."""
    odd = folder.rename(folder.with_name(name))
    with pytest.raises(UserError, match=r"--slurm-agents: found .* must be UTF-8") as error:
        SlurmAgents(Given(odd))
    assert str(error.value).isprintable()


def test_a_slurm_that_is_away_at_the_end_is_one_line(folder, programs, capsys):
    """The agents' own limit ends them then."""
    with Termination().keeping(SlurmAgents(Given(folder))):
        (programs / "squeue").write_text("#!/bin/sh\necho away >&2; exit 1\n")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("the agents end by themselves when they have been idle")
    assert last.endswith("away")


WRONG = {
    "--slurm": (["--slurm"], "--slurm: cannot be given with --slurm-agents"),
    "--requeue": (["--requeue"], "--requeue: cannot be given with --slurm-agents"),
    "--resume": (["--resume", "auto"], "--resume: cannot be given with --slurm-agents"),
    "no agents": (["--slurm-agents", "."], "--slurm-agents "),
    "no key": (["--cluster-key-file", "none"], "none: the cluster key cannot be read"),
    "no file": (["-f", "none.yaml"], "none.yaml"),
    "too little time": (["--leave-seconds", "900"], "job.leave_seconds: 900 s before"),
    "no discovery": (["--no-discover"], "{folder}/nodes.yaml:2: nodes: found an empty list"),
    "a pool that Slurm refuses": (["--min-np", "1"], "sbatch"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(folder, programs, monkeypatch, capsys, case):
    """Exit code 2; nothing is left in Slurm's queue, nor an address of nobody."""
    words, expected = WRONG[case]
    monkeypatch.chdir(folder.parent)
    if case == "a pool that Slurm refuses":
        (folder / "agents-a.sh").touch()
        (folder / "agents-bad.sh").touch()
    (folder.parent / "train.py").touch()
    assert main(["run", "--slurm-agents", str(folder), *words, "--", "train.py"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"hetero-hvd: {expected.format(folder=folder)}"), lines
    assert (programs / "squeue.answer").read_text() == ""
    assert not (folder / "driver.address").exists()
