"""Arrays of agents: submitted where there are none, and cancelled; no other job is touched."""

import gzip
import re
from pathlib import Path

import pytest

from hetero_hvd.driver.workers.launchers.srun import NOT_OF_THIS_NODE
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.slurm import agent_jobs
from hetero_hvd.slurm.agent_jobs import AgentJobs, AgentTask
from hetero_hvd.slurm.jobs import COMPLETING, ENDED


@pytest.fixture
def rig(programs, arrays):
    """The programs and the folder."""
    return programs, arrays


def asked(programs, name):
    """What a program was asked, a line each time."""
    path = programs / f"{name}.asked"
    return path.read_text().splitlines() if path.exists() else []


def comment(folder, pool):
    """What Slurm keeps of a job of the folder."""
    return f"hetero-hvd:{pool}:{folder}"


def test_what_is_not_there_is_submitted_from_its_folder(rig):
    """With nothing of this process's own job and GPUs, and all else that it has."""
    programs, folder = rig
    leaking = dict.fromkeys(NOT_OF_THIS_NODE, "7") | {
        "SLURM_MEM_PER_NODE": "1",
        "SBATCH_ARRAY": "1",
    }
    kept = {"SLURM_CONF": "/etc/slurm.conf", "HOME": "/home/me", "PATH": str(programs)}
    kept["PATH"] += ":/usr/bin:/bin"
    assert AgentJobs(folder, leaking | kept).submit() == {"1": "cpu", "2": "gpu"}
    words = [
        f"--parsable --comment={comment(folder, p)} {folder}/agents-{p}.sh" for p in ("cpu", "gpu")
    ]
    assert asked(programs, "sbatch") == words
    assert (programs / "sbatch.folder").read_text().strip() == str(folder)
    lines = (programs / "sbatch.environment").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert found.items() >= kept.items()
    assert found.keys().isdisjoint(leaking)


OTHERS = """\
7 N/A RUNNING (null)
8 1 RUNNING hetero-hvd:gpu:/elsewhere
9 2 PENDING a comment of mine
"""


@pytest.mark.parametrize(
    ("there", "new"),
    [
        ({}, ["cpu", "gpu"]),
        ({"4": "gpu"}, ["cpu"]),
        ({"4": "gpu", "5": "cpu"}, []),
    ],
)
def test_what_is_there_stays_and_is_cancelled_at_the_end(rig, there, new):
    """Jobs of other folders and of the user's own are neither counted nor cancelled."""
    programs, folder = rig
    own = "".join(
        f"{number} N/A RUNNING {comment(folder, pool)}\n" * 2 for number, pool in there.items()
    )
    (programs / "squeue.answer").write_text(OTHERS + own)
    jobs = AgentJobs(folder, {"PATH": f"{programs}:/usr/bin:/bin"})
    assert jobs.present() == there
    submitted = jobs.submit()
    assert sorted(submitted.values()) == new
    assert jobs.submit() == {}
    assert jobs.cancel() == there | submitted
    assert asked(programs, "scancel") == [" ".join(there | submitted)]
    assert jobs.cancel() == {}
    assert len(asked(programs, "scancel")) == 1


MISSING = {
    "none": ("--array=1-3%3", [1, 2, 3], None),
    "all but one": ("--array=1-4%4", [2], "--array=1,3,4%3"),
    "under a cap": ("--array=1-16%2", [1, 2, 3], "--array=4,5,6,7,8,9,10,11,12,13,14,15,16%1"),
    "without a cap": ("--array=1-3", [3], "--array=1,2"),
    "by a letter": ("-a1-3", [3], "--array=1,2"),
    "in steps": ("--array=1-9:4,12%9", [5], "--array=1,9,12%8"),
    "others": ("--array=1-2", [1, 2, 7], None),
    "what is no array": ("--gpus=1", [1], None),
    "what is not understood": ("--array=x", [1], None),
}
"""The options of a batch script, the tasks that are there, and with what it is submitted."""


@pytest.mark.parametrize("case", MISSING)
def test_tasks_that_have_ended_are_submitted_anew(rig, case):
    """The others stay; as many run at once as before, as far as can be said."""
    programs, folder = rig
    options, there, expected = MISSING[case]
    (folder / "agents-cpu.sh").write_text(f"#!/bin/sh\n#SBATCH {options}\nexec agent\n")
    lines = [f"{40 + task % 2} {task} RUNNING {comment(folder, 'cpu')}\n" for task in there]
    lines.append(f"50 N/A RUNNING {comment(folder, 'gpu')}\n")
    (programs / "squeue.answer").write_text("".join(lines))
    submitted = AgentJobs(folder, {"PATH": f"{programs}:/usr/bin:/bin"}).submit()
    assert submitted == ({} if expected is None else {"1": "cpu"})
    words = f"--parsable --comment={comment(folder, 'cpu')} {expected} {folder}/agents-cpu.sh"
    assert asked(programs, "sbatch") == ([] if expected is None else [words])


PRESENT = """
CONFIGURING PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD REVOKED RUNNING
SIGNALING SPECIAL_EXIT STOPPED SUSPENDED
"""
"""States of a task that runs or will: waiting again, held for its user, begun elsewhere."""

STATES = {
    **dict.fromkeys(PRESENT.split(), True),
    **dict.fromkeys((*ENDED, COMPLETING), False),
}
"""Those that Slurm knows, and whether a task is there; COMPLETING: one that is for ever."""

PAGE = Path("/usr/share/man/man1/squeue.1.gz")


def test_the_manual_of_squeue_names_no_state_that_is_not_thought_of():
    """A new one of Slurm's is there to be judged."""
    text = gzip.decompress(PAGE.read_bytes()).decode(errors="replace") if PAGE.exists() else ""
    codes = text.replace("\\_", "_").partition('.SH "JOB STATE CODES"')[2].partition(".SH ")[0]
    found = re.findall(r"\\fB[A-Z]+\s+([A-Z_]+)\\fR", codes)
    assert len(found) > 20 or not PAGE.exists()
    assert [state for state in found if state not in STATES] == []


@pytest.mark.parametrize("state", sorted(STATES))
def test_a_task_is_there_until_it_ends_for_good(rig, state):
    """A pool whose tasks are ending would have no agents; one that waits again has them soon."""
    programs, folder = rig
    (folder / "agents-cpu.sh").write_text("#!/bin/sh\n#SBATCH --array=1-2\nexec agent\n")
    lines = [f"40 1 {state} {comment(folder, 'cpu')}\n", f"40 2 RUNNING {comment(folder, 'cpu')}\n"]
    lines.append(f"50 N/A {state} {comment(folder, 'gpu')}\n")
    (programs / "squeue.answer").write_text("".join(lines))
    jobs = AgentJobs(folder, {"PATH": f"{programs}:/usr/bin:/bin"})
    assert sorted(jobs.submit().values()) == ([] if STATES[state] else ["cpu", "gpu"])
    first = "".join(asked(programs, "sbatch")[:1])
    assert ("--array=1 " in first) == (not STATES[state])


@pytest.mark.parametrize(("then", "new"), [("PENDING", []), ("COMPLETED", ["cpu"])])
def test_what_becomes_of_a_task_that_ends_is_waited_for(rig, monkeypatch, then, new):
    """One that is requeued ends, too, and would be there twice."""
    programs, folder = rig
    (folder / "agents-gpu.sh").unlink()
    answers = iter([COMPLETING, COMPLETING, then])
    monkeypatch.setattr(agent_jobs, "END_SECONDS", 60.0)
    monkeypatch.setattr(agent_jobs, "LOOK_SECONDS", 0.0)
    jobs = AgentJobs(folder, {"PATH": f"{programs}:/usr/bin:/bin"})
    monkeypatch.setattr(jobs, "_tasks", lambda: [AgentTask("4", "1", next(answers), "cpu")])
    assert sorted(jobs.submit().values()) == new
    assert list(answers) == []


def test_a_pool_that_slurm_refuses_leaves_none_behind(rig):
    """What was submitted here before is cancelled; the line says what Slurm says."""
    programs, folder = rig
    (folder / "agents-bad.sh").touch()
    (programs / "squeue.answer").write_text(f"40 N/A RUNNING {comment(folder, 'gpu')}\n")
    (folder / "agents-a.sh").touch()
    with pytest.raises(JobError, match="invalid partition"):
        AgentJobs(folder, {"PATH": f"{programs}:/usr/bin:/bin"}).submit()
    assert asked(programs, "scancel") == ["1"]  # of `a`; the one of `gpu` was there before


def test_a_folder_without_agents_is_refused(tmp_path):
    """One line, with what to do."""
    with pytest.raises(UserError, match="write the folder with hetero-hvd deploy slurm"):
        AgentJobs(tmp_path, {})
