"""Agents that are Slurm jobs of one node each: a real Slurm, of four nodes on this machine."""

import functools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

COUNTING = Path(__file__).parents[1] / "kit" / "fault_script.py"
"""Proves how often each sample was used."""
EPOCHS = 10
PATIENT = {"num_workers": 3, "patient_from": 8, "patient_seconds": 0.6}
"""Alone the last worker would take 45 s for the epochs: until then the others are back."""

LONG = (str(Path(__file__).with_name("train.py")), "100000")
ON_GPUS = "gpu:2:-C v100 -c4 --gpus=1"
ON_SLOW1 = "cpu:1:-w slow1 -c4"
BROKEN = "broken:1:-w slow2"


class Deployed:
    """What `hetero-hvd deploy slurm` has written, submitted.

    Args:
        slurm: The cluster.
        folder: Of the script; has a blank in its path, as folders may.
        options: Of the command.
        script: With its arguments.
        change: Called with the folder that was written, before it is submitted.
    """

    def __init__(self, slurm, folder, *options, script, change=None):
        self.folder = folder
        self._slurm = slurm
        words = ["deploy", "slurm", "d", "--driver=-w slow2", *options, "--", *script]
        self._call(sys.executable, "-m", "hetero_hvd", *words)
        if change is not None:
            change(self.folder / "d")
        self.driver = self.submit()

    def _call(self, *words):
        environment = self._slurm.environment | {"CUDA_VISIBLE_DEVICES": "7"}  # of another node
        done = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stderr
        return done.stdout

    def submit(self):
        """The number of the driver's job."""
        return self._call("sh", "d/submit.sh").split()[-1]

    def said(self, log="driver"):
        """What a job has printed so far, in all its starts."""
        path = self.folder / "d" / "logs" / f"{log}.txt"
        return path.read_text() if path.exists() else ""

    def wait_for(self, pattern, seconds=180, log="driver"):
        """Until a job has printed it; the first match."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.said(log))) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.said(log)}"
            time.sleep(0.05)
        return found

    def jobs(self):
        """What Slurm has of it: label of each job or task to its state."""
        lines = self._slurm.ask("squeue", "-h", "-r", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def wait_until_all_is_gone(self, seconds=120):
        """Neither the driver's job is there nor one of its agents'."""
        wait_until(lambda: not self.jobs(), seconds, f"the end of {self.jobs()}")


@pytest.fixture
def deploy(slurm, tmp_path):
    """Deploys and submits; at the end, none of its processes may be left."""
    folder = tmp_path / "a b"
    folder.mkdir()
    yield functools.partial(Deployed, slurm, folder)
    slurm.ask("scancel", "--user=root")
    slurm.wait_for(lambda: not slurm.ask("squeue", "-h"))
    slurm.set_up()
    wait_until(lambda: not processes_of(folder), 20, "the end of all processes")


def break_pool(folder):
    """Give the agents of a pool a wrong path."""
    script = folder / "agents-broken.sh"
    script.write_text(script.read_text().replace("exec ", "exec /nowhere", 1))


def test_agents_that_are_preempted_come_back_and_no_sample_is_lost(deploy, slurm, tmp_path):
    """A more urgent job takes two nodes of three; at the end of the training no job is left.

    One more pool fails in all its tasks, in silence: with what, and in which log, the driver tells.
    """
    given = {"folder": str(tmp_path / "a b"), "epochs": EPOCHS, "patient_until": "taken"} | PATIENT
    pools = [word for pool in (ON_GPUS, ON_SLOW1, BROKEN) for word in ("--pool", pool)]
    job = deploy(*pools, script=(str(COUNTING), json.dumps(given)), change=break_pool)
    job.wait_for("3 workers train together")
    agents = dict(re.findall(r"agents (\w+) are job (\d+)", job.said()))
    urgent = ("-p", "urgent", "-w", "fast[1-2]", "-N2", "--exclusive", "--output=/dev/null")
    slurm.ask("sbatch", *urgent, "--wrap", "true")
    job.wait_for("(?s)3 workers train together.* 1 workers train together")
    (job.folder / "taken").touch()
    for task in (1, 2):
        slurm.hurry(f"{agents['gpu']}_{task}")
    job.wait_for("(?s)1 workers train together.* 3 workers train together")
    job.wait_for("ended: the training is finished")
    job.wait_until_all_is_gone()
    for pool in ("cpu", "gpu"):
        assert f"agents {pool} are ended: job {agents[pool]} is cancelled" in job.said()
    restarts = {task: slurm.job(f"{agents['gpu']}_{task}")["Restarts"] for task in (1, 2)}
    assert restarts == {1: "1", 2: "1"}
    results = [json.loads(path.read_text()) for path in job.folder.glob("result-*.json")]
    assert [result["times_used"] for result in results] == [[EPOCHS, EPOCHS]] * 3
    assert len({result["state"] for result in results}) == 1
    for name in ("fast1-train-gpu-1", "fast2-train-gpu-2", "slow1-train-cpu-1"):
        assert re.search(f"{name} announces itself: .* 1 slot,", job.said())
    assert re.search(
        "agents broken: 1 of 1 have failed and none runs; job .*_1 is FAILED, exit code 127; its "
        "log .*/a b/d/logs/broken-1.txt ends with: .*/nowhere.*not found",
        job.said(),
    )
    assert not (job.folder / "d" / "driver.address").exists()


@pytest.mark.matrix
def test_agents_leave_one_after_the_other_before_their_time_limit_and_come_back(deploy, slurm):
    """Of their own accord, each at a time of its own; who cancels the driver's job ends them."""
    limits = ("--leave-seconds", "20", "--leave-stagger-seconds", "20")
    job = deploy("--pool", "cpu:2:-x slow[1-2] -c4 --time=2", *limits, script=LONG)
    job.wait_for("2 workers train together")  # 90 s and 100 s before the agents leave
    for task, seconds in ((1, 20), (2, 30)):  # a part of the stagger: 0, and a half
        log = f"cpu-{task}"
        told = job.wait_for(r"Slurm's time limit is reached in (\d+) s: leaving", 180, log)
        assert seconds - 3 <= int(told[1]) <= seconds
        job.wait_for("listens on port(?s:.)*listens on port", log=log)
    job.wait_for("(?s)1 workers train together.*2 workers train together")
    assert "exited with code" not in job.said()
    slurm.ask("scancel", job.driver)
    job.wait_until_all_is_gone()
    assert re.search("agents cpu are ended: job .* is cancelled", job.said())


@pytest.mark.matrix
def test_agents_wait_for_a_driver_that_starts_again(deploy, slurm):
    """It is requeued, and goes on from its checkpoint with the agents that there are."""
    job = deploy("--pool", ON_SLOW1, script=LONG)
    job.wait_for(r"step \d\d.*samples/s")
    before = {label: state for label, state in job.jobs().items() if label != job.driver}
    slurm.ask("scontrol", "requeue", job.driver)
    job.wait_for(r"(?s)(agents find this driver.*){2}has found .*: step \d+.*samples/s")
    first, _, second = job.said().rpartition("agents find this driver")
    last_told = int(re.findall(r"^step (\d+)", first, re.MULTILINE)[-1])
    assert int(re.search(r"has found .*: step (\d+)", second)[1]) >= last_told > 10
    assert {label: state for label, state in job.jobs().items() if label != job.driver} == before
    assert job.said("cpu-1").count("listens on port") == 1
    assert job.said().count("agents cpu are job") == 1


@pytest.mark.matrix
def test_an_agent_whose_node_fails_comes_back_on_another_one(deploy, slurm):
    """Slurm requeues its job. More agents at once are Slurm's, too: the throttle of the array."""
    job = deploy("--pool", "any:2%1:-x slow2 -c4", script=LONG)
    job.wait_for("1 workers train together")
    number = re.search(r"agents any are job (\d+)", job.said())[1]
    slurm.ask("scontrol", "update", f"JobId={number}", "ArrayTaskThrottle=2")
    job.wait_for("2 workers train together")
    lost = slurm.job(f"{number}_2")["NodeList"]
    slurm.crash(lost)
    job.wait_for("(?s)2 workers train together.*1 workers train together")
    job.wait_for("(?s)1 workers train together.*2 workers train together.*2 workers train together")
    assert slurm.job(f"{number}_2")["NodeList"] != lost
