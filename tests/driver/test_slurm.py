"""Jobs inside an allocation of Slurm: a real one, of four nodes on this machine."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("train.py")
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
        (folder / "job.sh").write_text(f"{head}exec {' '.join(words)}\n")
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
    wait_until(lambda: not processes_of(tmp_path), 20, "the end of all processes")


def test_a_heterogeneous_job_trains_as_one(submit):
    """A slot for each GPU that Slurm grants, one where it grants none; the nodes of both parts."""
    nodes = ("-N1", "-w", "fast1", "--gres=gpu:2", ":", "-N1", "-w", "slow1")
    job = submit("--output", "out", nodes=nodes)
    assert job.wait() == 0, job.said
    assert "step 0: 3 workers train together" in job.said
    summary = job.summary()
    assert set(summary["workers"]) == {"fast1:0", "fast1:1", "slow1:0"}
    assert (summary["steps"], summary["replicas_equal"]) == (40, True)


def test_without_no_kill_the_job_is_refused(submit):
    """Before anything is started."""
    job = submit("--output", "out", nodes=("-N2",), head=HEAD.replace("--no-kill", ""))
    assert job.wait() == 2
    assert job.said.count("\n") == 1
    assert "add the line '#SBATCH --no-kill'" in job.said
