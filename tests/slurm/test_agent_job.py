"""An agent as a Slurm job of its own: its name, its identity, its part of the stagger, its end."""

import argparse
import shutil
from pathlib import Path

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.cluster import agent_job
from hetero_hvd.cli.cluster.agent_job import AgentJob, part_of
from hetero_hvd.messages import NODE_NAME
from hetero_hvd.slurm import time_limit
from hetero_hvd.slurm.allocation import Allocation
from tests.leftovers import wait_until

ARRAY = {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
OTHER = {"label": "15"}
"""What `sbatch` is called in hands its variables down: the job is none of that array."""

JOB = {"SLURM_JOB_ID": "15", "SLURM_JOB_NODELIST": "fast1", "SLURM_JOB_NAME": "train-gpu"}


@pytest.fixture(autouse=True)
def inside(programs, monkeypatch):
    """Slurm knows a job with ten minutes left."""
    tell(JOB)
    (programs / "scontrol.job").write_text("JobId=15 JobState=RUNNING Restarts=0\n")
    monkeypatch.setattr(agent_job, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(time_limit, "LOOK_SECONDS", 3600.0)
    return programs


def tell(environment, left="10:00"):
    """Slurm knows the job whose environment this is."""
    number = environment["SLURM_JOB_ID"]
    array = environment.get("SLURM_ARRAY_JOB_ID")
    label = f"{array}_{environment['SLURM_ARRAY_TASK_ID']}" if array else number
    label = environment.get("label", label)
    line = f"{number}|{label}|RUNNING|{left}|{environment['SLURM_JOB_NODELIST']}\n"
    Path(shutil.which("squeue")).with_name("squeue.jobs").write_text(line)


def job(leave=None, stagger=None, **environment):
    """An agent's job by what Slurm has set."""
    given = argparse.Namespace(leave_seconds=leave, leave_stagger_seconds=stagger)
    tell(JOB | environment)
    return AgentJob(given, JOB | environment)


NAMES = {
    "a task of an array": (ARRAY, "fast1-train-gpu-3"),
    "submitted by a task of an array": (ARRAY | OTHER, "fast1-train-gpu"),
    "no array": ({}, "fast1-train-gpu"),
    "no name": ({"SLURM_JOB_NAME": ""}, "fast1"),
    "odd names": (
        {"SLURM_JOB_NODELIST": "_gpu_1", "SLURM_JOB_NAME": "_a b_"} | ARRAY,
        "gpu-1-a-b-3",
    ),
    "a long name": ({"SLURM_JOB_NAME": "x" * 99} | ARRAY, "fast1-" + "x" * 49 + "-3c6a5388"),
}


@pytest.mark.parametrize("case", NAMES)
def test_the_nodes_name_is_that_of_machine_job_and_task(case):
    """What is remembered of a node is of one machine, and two tasks on it are two nodes."""
    environment, name = NAMES[case]
    assert job(**environment).name == name
    assert NODE_NAME.fullmatch(name)


def test_each_task_has_a_part_of_the_machine():
    """The same after a requeue, which gives the task no other number."""
    first = job(**ARRAY).machine
    assert first == job(**ARRAY | {"SLURM_JOB_ID": "99"}).machine
    assert first != job(**ARRAY | {"SLURM_ARRAY_TASK_ID": "4"}).machine
    assert len(first) == 32


PARTS = [
    ("12_1", {}, 0.0),
    ("12_4", {}, 0.75),
    ("12_9", {}, 0.0),  # of an array that was submitted by hand, with gaps
    ("12_1", {"SLURM_ARRAY_TASK_COUNT": "0"}, 15 / 16),
    ("12_2", {"SLURM_ARRAY_JOB_ID": "7"}, 15 / 16),  # which has submitted this one
    ("15", {}, 15 / 16),
]


@pytest.mark.parametrize(("label", "environment", "part"), PARTS)
def test_tasks_share_out_the_stagger(label, environment, part):
    """No two of an array leave at once."""
    array = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "4"} | ARRAY
    granted = Allocation(number=15, label=label, nodes=())
    assert part_of(granted, array | environment) == part


def test_an_agent_leaves_before_its_time_limit_and_is_requeued(inside, capsys):
    """As the task that it is: the array's number would requeue all of its tasks."""
    array = ARRAY | {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "4"}
    (inside / "squeue").write_text('#!/bin/sh\necho "$*" >> "$0.asked"; cat "$0.jobs"\n')
    found = job("100", "900", **array)  # of which a half is its own: 550 s
    assert found.must_leave() == ""
    found._limit._end_at_seconds -= 49
    assert found.must_leave() == ""
    tell(JOB | array, left="9:08")
    found._limit._end_at_seconds -= 2
    wait_until(found.must_leave, 30, "a confirmation by Slurm")
    assert found.must_leave().startswith("Slurm's time limit is reached in 5")
    assert "--jobs=12_3" in (inside / "squeue.asked").read_text()
    found.left()
    assert (inside / "scontrol.requeued").read_text() == "12_3\n"
    assert capsys.readouterr().out == "job 12_3 is requeued\n"


def test_a_slurm_that_does_not_answer_is_asked_again(inside, monkeypatch):
    """A busy controller costs no node; one that never answers is one line."""
    (inside / "squeue").write_text(
        '#!/bin/sh\n[ -e "$0.up" ] || { touch "$0.up"; exit 1; }\ncat "$0.jobs"\n'
    )
    assert job().must_leave() == ""
    (inside / "squeue").write_text("#!/bin/sh\necho down >&2; exit 1\n")
    monkeypatch.setattr("os.environ", dict(JOB) | {"PATH": f"{inside}:/usr/bin:/bin"})
    assert main(["agent", "--slurm"]) == 2


WRONG = {
    "outside": ({"SLURM_JOB_ID": ""}, [], "--slurm: this is no Slurm job"),
    "several nodes": (
        {"SLURM_JOB_NODELIST": "fast[1-2]"},
        [],
        "--slurm: found 2 nodes in job 15, must be 1",
    ),
    "too little time": ({}, ["--leave-seconds", "900"], "job.leave_seconds: 900 s before"),
    "no seconds": ({}, ["--leave-seconds", "soon"], "--leave-seconds: found 'soon', must be"),
    "a part of none": (
        {},
        ["--leave-stagger-seconds", "-1"],
        "--leave-stagger-seconds: found '-1', must be",
    ),
    "no idle time": ({}, ["--until-idle", "0"], "--until-idle: found '0', must be an integer"),
    "no job": (None, ["--leave-seconds", "1"], "--leave-seconds: has no effect without --slurm"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(monkeypatch, capsys, tmp_path, case):
    """Exit code 2, and nothing is announced."""
    changed, words, expected = WRONG[case]
    tell(JOB | (changed or {}))
    for name, value in (JOB | (changed or {})).items():
        monkeypatch.setenv(name, value)
    assert main(["key", str(tmp_path / "key")]) == 0
    capsys.readouterr()
    slurm = [] if changed is None else ["--slurm"]
    assert main(["agent", *slurm, "--key-file", str(tmp_path / "key"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hetero-hvd: {expected}")
