"""Jobs inside an allocation of Slurm: a real one, of four nodes on this machine."""

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.kit.engines.slurm_job import ENDED, HEAD, BatchJob, InSalloc
from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("train.py")
COUNTING = Path(__file__).parents[1] / "kit" / "fault_script.py"
"""Proves how often each sample was used."""


@pytest.fixture
def submit(slurm, tmp_path):
    """Submits jobs; at the end, none of their processes may be left."""
    jobs = []

    def submit(*options, script=(str(SCRIPT), "5"), way=BatchJob, **more):
        jobs.append(way(slurm, tmp_path, *options, script=script, **more))
        return jobs[-1]

    yield submit
    for job in jobs:
        job.end()
    slurm.set_up()
    wait_until(lambda: not processes_of(tmp_path), 20, "the end of all processes")


@pytest.mark.parametrize("way", [InSalloc, pytest.param(BatchJob, marks=pytest.mark.matrix)])
def test_a_heterogeneous_job_trains_as_one_and_loses_a_node_without_a_sample(
    submit, slurm, tmp_path, way
):
    """Shares follow the speeds; the others take the step under way again; the node is given up.

    The driver runs where salloc was called, or on the first node that it was given.
    """
    parts = ("-N2", "-w", "fast1,fast2", ":", "-N1", "-w", "slow1")
    given = {"folder": str(tmp_path), "epochs": 7, "slow": {"slow1:0": 4.0}}
    given |= {"patient_from": 32, "patient_until": "down"}
    script = (str(COUNTING), json.dumps(given))
    job = submit("--output", "out", nodes=parts, script=script, way=way)
    job.wait_for("step 0: 3 workers train together")
    job.wait_for(r"step [2-9]\d.*samples/s")
    # Later on each step of whoever has samples takes so much longer that shares hardly matter.
    plans = re.findall(r"step (\d+): shares (.+?): ", job.said)
    planned = [shares for step, shares in plans if int(step) < given["patient_from"]][-1]
    shares = {worker: int(share) for worker, share in re.findall(r"(\S+) (\d+)", planned)}
    assert shares["slow1:0"] < shares["fast1:0"] / 2, job.said
    slurm.set_down("fast2")
    job.wait_for("2 workers train together")
    (tmp_path / "down").touch()
    assert job.wait() == 0, job.said
    summary = job.summary()
    assert set(summary["workers"]) == {"fast1:0", "fast2:0", "slow1:0"}
    assert (summary["steps"], summary["replicas_equal"]) == (56, True)
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert [result["times_used"] for result in results] == [[7.0, 7.0]] * 2
    assert "srun: error: Node failure on fast2" in job.said
    assert "fast2:0 exited with code 255" in job.said


def test_without_no_kill_the_job_is_refused(submit):
    """Before anything is started."""
    job = submit("--output", "out", nodes=("-N2",), head=HEAD.replace("--no-kill", ""))
    assert job.wait() == 2
    assert job.said.count("\n") == 1
    assert "add the line '#SBATCH --no-kill'" in job.said


LONG = (str(SCRIPT), "100000")
KEPT = r"keeps the state of step (\d+)"
AGAIN = r"has found .*: step (\d+)"


def cancel(slurm, job):
    """Cancel a job or task, which keeps its state and stays away: who cancels does not want it."""
    slurm.ask("scancel", job.number)
    job.wait_for("Slurm decides whether it starts again")
    step = int(re.search(KEPT, job.said)[1])
    folder = job.folder / "runs" / f"slurm-kit-0-{job.number}"
    assert [int(path.name.split("-")[1]) for path in folder.glob("checkpoints/*")] == [step]
    slurm.wait_for(lambda: slurm.job(job.number)["JobState"] == "CANCELLED")


@pytest.mark.matrix
def test_a_job_of_two_nodes_that_is_cancelled_keeps_its_state_and_stays_away(submit, slurm):
    """SIGTERM comes to all its processes at once, on all its nodes."""
    nodes = ("-N2", "-w", "slow1,slow2")
    job = submit("--requeue", "--resume", "auto", nodes=nodes, script=LONG)
    job.wait_for(r"step \d\d.*samples/s")
    cancel(slurm, job)


def ends_of(job, number=2):
    """The step at whose end each start of a job has kept its state, and where the next went on."""
    job.wait_for(f"(?s)({AGAIN}.*){{{number - 1}}}samples/s")
    return [int(step) for step in re.findall(KEPT, job.said)], [
        int(step) for step in re.findall(AGAIN, job.said)
    ]


@pytest.mark.matrix
def test_a_job_that_is_preempted_goes_on_where_it_was(submit, slurm):
    """Slurm requeues it by itself when the more urgent one is through."""
    job = submit("--resume", "auto", nodes=("-N1", "-w", "slow2", "--exclusive"), script=LONG)
    job.wait_for(r"step \d\d.*samples/s")
    urgent = ("-p", "urgent", "-N1", "-w", "slow2", "--exclusive", "--output=/dev/null")
    slurm.ask("sbatch", *urgent, "--wrap", "true")
    kept, found = ends_of(job)
    assert kept[0] > 10
    assert set(found) == {kept[0]}


def test_a_task_of_an_array_is_requeued_alone_and_another_is_cancelled(submit, slurm, tmp_path):
    """The number of the last task is that of the array: by it all tasks would be meant."""
    nodes = ("--array=0-1", "-N1", "-w", "slow1")
    head, output = HEAD.replace("said", "said-%a"), "said-%a.txt"
    job = submit("--requeue", nodes=nodes, script=LONG, head=head, output=output)
    tasks = [job.task(number) for number in (0, 1)]
    for task in tasks:
        task.wait_for(r"step \d\d.*samples/s")
    other, last = tasks
    ids = slurm.ask("squeue", "-h", "-j", job.number, "-o", "%i %A").split()
    assert f"{last.number} {job.number}" in " ".join(ids)
    slurm.ask("scancel", "--batch", "--signal=TERM", last.number)
    last.wait_for(f"job {last.number} is requeued")
    slurm.hurry(last.number)
    kept, found = ends_of(last)
    assert found == kept[:1]
    assert slurm.job(last.number)["Restarts"] == "1"
    about = slurm.job(other.number)
    assert (about["JobState"], about["Restarts"]) == ("RUNNING", "0")
    assert "asked to end" not in other.said
    cancel(slurm, other)
    assert slurm.job(last.number)["JobState"] == "RUNNING"
    names = {path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()}
    assert names == {f"slurm-kit-0-{task.number}" for task in tasks}


@pytest.mark.matrix
def test_a_job_is_suspended_and_asked_to_end_twice(submit, slurm):
    """Its GPUs are a number for the whole of it; its script is no UTF-8."""
    head = HEAD + "# caf\N{LATIN SMALL LETTER E WITH ACUTE}\n"
    nodes = ("-N2", "-w", "fast1,fast2", "--gpus=3")
    job = submit("--output", "out", nodes=nodes, head=head, script=LONG)
    each = "(?=.*fast1:0)(?=.*fast1:1)(?=.*fast2:0)"  # whoever was there first
    job.wait_for(rf"3 workers train together: {each}(?s:.*)step \d\d.*samples/s")
    slurm.ask("scontrol", "suspend", job.number)
    wait_until(lambda: slurm.job(job.number)["JobState"] == "SUSPENDED", 10, "the pause")
    threading.Event().wait(2.0)
    before = len(job.said)
    slurm.ask("scontrol", "resume", job.number)
    wait_until(lambda: "samples/s" in job.said[before:], 120, "the job to go on")
    assert "lost" not in job.said
    for _ in range(2):
        slurm.ask("scancel", "--full", "--signal=TERM", job.number)
    job.wait_for(KEPT)
    assert job.wait() == 143
    assert "again" not in job.said


CODE = """
import os
from hetero_hvd.cli.train.run import check_started_once
from hetero_hvd.slurm.allocation import allocation
from hetero_hvd.slurm.node_loss import check_no_kill
check_started_once(os.environ)
print("only;", check_no_kill(allocation(os.environ), os.environ), flush=True)
"""


@pytest.mark.parametrize(
    ("options", "said", "number"),
    [
        (("-n2",), "was started by srun in 2 processes", 2),
        (("-n1", "-N1"), "only; note: without --no-kill, which cannot be seen", 1),
        (("--interactive", "-n1", "-N1"), "only; note: without --no-kill", 1),
    ],
    ids=["a step of two", "a step of one", "salloc's shell on a node"],
)
def test_where_a_driver_is_one_of_several_it_is_refused(slurm, options, said, number):
    """What Slurm calls its steps is read from its own daemons."""
    environment = slurm.allocation("-N2", "-n2", "-w", "slow1,slow2")
    done = subprocess.run(
        ["srun", *options, sys.executable, "-c", CODE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    slurm.end(environment["SLURM_JOB_ID"])
    assert (done.stdout + done.stderr).count(said) == number, done


def test_a_batch_script_that_was_submitted_in_a_step_has_the_only_driver(slurm, tmp_path):
    """What that step says of its tasks is handed down by sbatch."""
    step = ("SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=1")
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{CODE}'\n")
    options = ("--parsable", "-N1", "-w", "slow1", f"--output={tmp_path}/said.txt")
    sbatch = ("sbatch", *options, str(tmp_path / "job.sh"))
    number = slurm.ask("env", *step, "PMI_SIZE=2", "PMI_RANK=1", *sbatch)
    slurm.wait_for(lambda: slurm.job(number)["JobState"] in ENDED)
    assert (tmp_path / "said.txt").read_text() == "only; \n"
    assert slurm.job(number)["JobState"] == "COMPLETED"


@pytest.mark.matrix
def test_a_job_ends_before_its_time_limit_and_is_requeued(submit):
    """Of its own accord, with a checkpoint, as early as it is told to."""
    job = submit(
        *("--resume", "auto", "--requeue", "--leave-seconds", "45"),
        nodes=("-N1", "-w", "slow1", "--time=1"),
        script=LONG,
    )
    kept, found = ends_of(job)
    assert "Slurm's time limit is reached in 45 s: all workers are asked to end" in job.said
    assert f"job {job.number} is requeued" in job.said
    assert kept[0] > 10
    assert set(found) == {kept[0]}


@pytest.mark.matrix
def test_a_batch_host_that_is_lost_is_left_for_others(submit, slurm, tmp_path):
    """Slurm lets the job idle; a step on another node requeues it. The folder is not needed."""
    url = f"file://{tmp_path}/kept"
    job = submit(
        *("--resume", "auto", "--requeue", "--checkpoint-url", url, "--checkpoint-seconds", "1"),
        *("--heartbeat-timeout-seconds", "1"),
        nodes=("-N2",),
        script=LONG,
    )
    job.wait_for(r"step \d\d\d.*samples/s")
    host = slurm.job(job.number)["BatchHost"]
    slurm.crash(host)
    assert slurm.job(job.number)["JobState"] == "RUNNING"
    shutil.rmtree(tmp_path / "runs")
    job.wait_for(f"(?s){AGAIN}.*samples/s", 90)
    assert slurm.job(job.number)["BatchHost"] != host
    assert int(re.search(AGAIN, job.said)[1]) > 50
