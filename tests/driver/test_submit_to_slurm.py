"""`hetero-hvd submit --to slurm`: a job of the queue on a real Slurm, to its end."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.leftovers import processes_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("train.py")
SMALL = ("--sbatch", "-c1 --mem=500M")


class Submitter:
    """Who submits from a folder.

    Args:
        slurm: The cluster.
        folder: With the script; has a blank in its path, as folders may.
    """

    def __init__(self, slurm, folder):
        self.folder = folder
        self._environment = slurm.environment | {"SAID": "when it was submitted"}

    def __call__(self, *options, command=("train.py", "6")):
        """The answer of the command, both what it has printed and what it says beside."""
        words = ["submit", "--to", "slurm", *SMALL, *options, "--", *command]
        return subprocess.run(
            [sys.executable, "-m", "hetero_hvd", *words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def submit(slurm, tmp_path):
    """Submits; at the end, none of its processes may be left."""
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "said.py").write_text("import os\nprint('said', os.environ['SAID'])\n")
    (folder / "train.py").write_text(f"import said\n{SCRIPT.read_text()}")
    yield Submitter(slurm, folder)
    slurm.ask("scancel", "--user=root")
    slurm.wait_for(lambda: not slurm.ask("squeue", "-h"))
    wait_until(lambda: not processes_of(folder), 20, "the end of all processes")


def test_a_job_trains_on_slurm_as_it_was_submitted(submit, slurm):
    """In the partition of its pool; what is edited later does not reach it.

    A QOS needs a database, without which Slurm takes and forgets it.
    """
    flags = ("--pool", "urgent", "--priority", "high", "--min", "2", "--no-balance")
    done = submit(*flags)
    assert not done.returncode, done.stderr
    number = re.fullmatch(r"job (\d+) of Slurm\n", done.stdout)[1]
    (submit.folder / "said.py").write_text("raise RuntimeError('edited')\n")
    later = submit("--after", number)
    assert not later.returncode, later.stderr
    waits = slurm.job(later.stdout.split()[1])
    assert f"afterok:{number}" in waits["Dependency"]
    slurm.ask("scancel", waits["JobId"])
    assert slurm.job(number)["Partition"] == "urgent"
    log = submit.folder / "submitted" / "train-1" / "logs" / "driver.txt"
    deadline = time.monotonic() + 120
    while slurm.job(number)["JobState"] in {"PENDING", "RUNNING", "COMPLETING"}:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    said = log.read_text()
    assert slurm.job(number)["ExitCode"] == "0:0", said
    assert "said when it was submitted" in said
    assert "ended: the training is finished" in said
    assert "2 workers train together" in said
    assert "1 workers train together" not in said
    slurm.wait_for(lambda: not slurm.ask("squeue", "-h"))
    assert (submit.folder / "submitted" / ".gitignore").read_text() == "*\n"


REFUSED = {
    "a partition that is not there": (("--pool", "none"), "--to slurm: sbatch --test-only .*: "),
    "a script that is not there": (("--", "no.py"), "no.py: no such file in "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_slurm_does_not_take_leaves_nothing_behind(submit, slurm, case):
    """One line, exit code 2, no folder and no job."""
    words, expected = REFUSED[case]
    options, _, command = " ".join(words).partition("-- ")
    done = submit(*options.split(), command=command.split() or ("train.py", "6"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.match(f"hetero-hvd: {expected}", line), line
    assert not list(submit.folder.glob("submitted/*"))
    assert not slurm.ask("squeue", "-h")
