"""Jobs inside an allocation of Slurm: a real one, of four nodes on this machine."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("train.py")
COUNTING = Path(__file__).parents[1] / "kit" / "fault_script.py"
"""Proves how often each sample was used."""

HEAD = "#!/bin/sh\n#SBATCH --no-kill --output=said.txt --open-mode=append\n"


class BatchJob:
    """A job of sbatch that trains.

    Args:
        slurm: The cluster.
        folder: Where it works.
        options: Of `hetero-hvd run`.
        nodes: Of the allocation, as options of sbatch.
        script: With its arguments.
        head: Of the batch script.
    """

    def __init__(self, slurm, folder, *options, nodes, script=(str(SCRIPT), "5"), head=HEAD):
        self.folder = folder
        self._slurm = slurm
        words = [sys.executable, "-m", "hetero_hvd", "run", "--slurm", *options, "--", *script]
        (folder / "job.sh").write_text(f"{head}exec {shlex.join(words)}\n")
        done = subprocess.run(
            ["sbatch", "--parsable", *nodes, "job.sh"],
            cwd=folder,
            env=slurm.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stderr
        self.number = done.stdout.strip()

    @property
    def said(self):
        """What it has printed so far."""
        path = self.folder / "said.txt"
        return path.read_text() if path.exists() else ""

    def wait_for(self, pattern, seconds=60):
        """Until it has printed it."""
        wait_until(lambda: re.search(pattern, self.said), seconds, f"{pattern!r} in {self.folder}")

    def wait(self, seconds=90):
        """Until it has ended; gives its exit code."""
        state = {}

        def has_ended():
            state.update(self._slurm.job(self.number))
            return state["JobState"] in ("COMPLETED", "FAILED", "CANCELLED")

        wait_until(has_ended, seconds, f"the end of the job in {self.folder}")
        return int(state["ExitCode"].split(":")[0])

    def summary(self, output="out"):
        """The summary file of an ended job."""
        return json.loads((self.folder / output / "summary.json").read_text())


@pytest.fixture
def submit(slurm, tmp_path):
    """Submits jobs; at the end, none of their processes may be left."""
    jobs = []

    def submit(*options, **more):
        jobs.append(BatchJob(slurm, tmp_path, *options, **more))
        return jobs[-1]

    yield submit
    for job in jobs:
        slurm.end(job.number)
    slurm.set_up()
    wait_until(lambda: not processes_of(tmp_path), 20, "the end of all processes")


def test_a_heterogeneous_job_trains_as_one_and_loses_a_node_without_a_sample(
    submit, slurm, tmp_path
):
    """The others take the step under way again; the node is given up, as Slurm takes it back."""
    parts = ("-N2", "-w", "fast1,fast2", ":", "-N1", "-w", "slow1")
    given = json.dumps({"folder": str(tmp_path), "epochs": 20})
    job = submit("--output", "out", nodes=parts, script=(str(COUNTING), given))
    job.wait_for("step 0: 3 workers train together")
    job.wait_for(r"step \d\d.*samples/s")
    slurm.set_down("fast2")
    job.wait_for("2 workers train together")
    assert job.wait() == 0, job.said
    summary = job.summary()
    assert set(summary["workers"]) == {"fast1:0", "fast2:0", "slow1:0"}
    assert (summary["steps"], summary["replicas_equal"]) == (160, True)
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert [result["times_used"] for result in results] == [[20.0, 20.0]] * 2
    assert "Node failure on fast2" in job.said
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


def test_a_job_that_is_cancelled_keeps_its_state_and_stays_away(submit, slurm):
    """SIGTERM comes to all its processes at once; who cancels does not want it again."""
    nodes = ("-N2", "-w", "slow1,slow2")
    job = submit("--requeue", "--resume", "auto", nodes=nodes, script=LONG)
    job.wait_for(r"step \d\d.*samples/s")
    slurm.ask("scancel", job.number)
    job.wait_for("Slurm decides whether it starts again")
    step = int(re.search(KEPT, job.said)[1])
    folder = job.folder / "runs" / f"slurm-{job.number}"
    assert [int(path.name.split("-")[1]) for path in folder.glob("checkpoints/*")] == [step]
    slurm.wait_for(lambda: slurm.job(job.number)["JobState"] == "CANCELLED")


def ends_of(job, number=2):
    """The step at whose end each start of a job has kept its state, and where the next went on."""
    job.wait_for(f"(?s)({AGAIN}.*){{{number - 1}}}samples/s", 90)
    return [int(step) for step in re.findall(KEPT, job.said)], [
        int(step) for step in re.findall(AGAIN, job.said)
    ]


def test_a_job_that_is_preempted_goes_on_where_it_was(submit, slurm):
    """Slurm requeues it by itself when the more urgent one is through."""
    job = submit("--resume", "auto", nodes=("-N1", "-w", "slow2", "--exclusive"), script=LONG)
    job.wait_for(r"step \d\d.*samples/s")
    urgent = ("-p", "urgent", "-N1", "-w", "slow2", "--exclusive", "--output=/dev/null")
    slurm.ask("sbatch", *urgent, "--wrap", "true")
    kept, found = ends_of(job)
    assert kept[0] > 10
    assert set(found) == {kept[0]}


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
