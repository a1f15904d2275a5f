"""What is above this process is read from the kernel; one of several tasks is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_hvd.errors import UserError
from hetero_hvd.slurm import ancestors as above
from hetero_hvd.slurm.ancestors import ancestors, check_only_driver

TITLE = "slurmstepd: [{}]"
TWO = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
ONE = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
SHELL = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
CASES = {
    "a batch script": ("12.batch", {}, True),
    "one that was submitted in a step": ("12.batch", TWO, True),
    "a batch script of an older Slurm": ("12.4294967294", TWO, True),
    "salloc's shell on a node": ("12.interactive", SHELL, True),
    "the same inside of a step": ("12.interactive", TWO, True),
    "salloc's shell where it was called": (None, {}, True),
    "a step of one task": ("12.0", ONE, True),
    "a step of two tasks": ("12.0", TWO, False),
    "a step of two parts": ("13+1.0", TWO, False),
    "a step whose daemon is not seen": (None, TWO, False),
    "salloc's shell whose daemon is not seen": (None, SHELL, True),
}
"""What slurmstepd calls itself, what the variables say, and whether this is the only driver."""


@pytest.mark.parametrize(("step", "environment", "is_only"), CASES.values(), ids=CASES)
def test_one_of_several_tasks_is_refused(monkeypatch, step, environment, is_only):
    """Each would train by itself; whoever calls it once may do so anywhere."""
    line = ["bash"] if step is None else [TITLE.format(step)]
    monkeypatch.setattr(above, "ancestors", lambda: iter([["python", "-m"], line, ["init"]]))
    if is_only:
        check_only_driver(environment)
    else:
        with pytest.raises(UserError, match="srun has started this 2 times") as error:
            check_only_driver(environment)
        assert "\n" not in str(error.value)


def test_the_way_up_begins_here(tmp_path):
    """Each with its words, up to the first process of all."""
    lines = list(ancestors())
    own = Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")
    assert lines[0] == own
    code = "from hetero_hvd.slurm.ancestors import ancestors; print(list(ancestors())[1])"
    words = [sys.executable, "-c", code]
    link = tmp_path / "caller"
    link.symlink_to("/bin/sh")
    found = subprocess.run(
        [link, "-c", f"{words[0]} -c '{code}'; :", "two words"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert found.stdout.startswith(f"['{link}', '-c', ")
    assert found.stdout.endswith(", 'two words']\n")
