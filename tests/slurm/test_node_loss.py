"""A job that Slurm would end with one of its nodes is refused."""

import os
import subprocess
import sys

import pytest

from hetero_hvd.errors import UserError
from hetero_hvd.slurm.allocation import Allocation, GrantedNode
from hetero_hvd.slurm.node_loss import check_no_kill, note_of_first_part


def job(num_nodes):
    """A job of so many nodes."""
    nodes = tuple(GrantedNode(slurm_name=f"fast{number}") for number in range(num_nodes))
    return Allocation(job_id="12", label="12", nodes=nodes)


SURVIVE = {
    "option": "#SBATCH --no-kill",
    "short": "#SBATCH -k",
    "among others": "#SBATCH -N4 -k --gpus=1",
    "the last counts": "#SBATCH --no-kill=off\n#SBATCH --no-kill",
}
END = {
    "none": "#SBATCH -N4",
    "off": "#SBATCH --no-kill=off",
    "the last counts": "#SBATCH --no-kill\n#SBATCH --no-kill=off",
    "a comment": "# SBATCH --no-kill",
    "another command": "srun --no-kill train",
    "another option": "#SBATCH --kill-on-invalid-dep=yes",
}


@pytest.mark.parametrize("lines", SURVIVE.values(), ids=SURVIVE)
def test_the_batch_script_says_it(programs, lines):
    """However it is written."""
    (programs / "scontrol.script").write_text(f"#!/bin/sh\n{lines}\nexec train\n")
    check_no_kill(job(2), {})


@pytest.mark.parametrize("lines", END.values(), ids=END)
def test_without_it_the_job_is_refused_in_one_line(programs, lines):
    """Which says what would happen, and what to write where."""
    (programs / "scontrol.script").write_text(f"#!/bin/sh\n{lines}\n")
    with pytest.raises(UserError, match="add the line '#SBATCH --no-kill'") as error:
        check_no_kill(job(2), {})
    assert "\n" not in str(error.value)
    check_no_kill(job(1), {})  # its one node is the driver's own


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("name", ["SBATCH_NO_KILL", "SALLOC_NO_KILL", "SLURM_NO_KILL"])
def test_the_environment_says_it(name):
    """There is no batch script in a shell of salloc."""
    check_no_kill(job(2), {name: "1"})
    check_no_kill(job(2), {name: ""})  # sbatch takes it so, too
    with pytest.raises(UserError):
        check_no_kill(job(2), {name: "no"})


@pytest.mark.parametrize(
    ("groups", "is_told"),
    [((None, None), False), ((0, 0, 1), False), ((0, 1, 1), True), ((0, 1), True), ((0,), False)],
)
def test_a_first_part_of_one_node_is_told(groups, is_told):
    """Slurm requeues such a job whichever node fails, also with --no-kill."""
    nodes = tuple(
        GrantedNode(slurm_name=f"fast{number}", group=group) for number, group in enumerate(groups)
    )
    found = note_of_first_part(Allocation(job_id="12", label="12", nodes=nodes))
    assert found.startswith("note: the first part") is is_told


CODE = """
from hetero_hvd.slurm.node_loss import check_no_kill
from tests.slurm.test_node_loss import job
check_no_kill(job(2), {})
"""


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(("option", "code"), [("--no-kill", 0), ("-k", 0), ("-N2", 2)])
def test_the_salloc_above_says_it(tmp_path, option, code):
    """It is an ancestor of this process."""
    salloc = tmp_path / "salloc"
    salloc.symlink_to(sys.executable)
    run = f"import subprocess, sys; sys.exit(subprocess.call([{sys.executable!r}, '-c', {CODE!r}]))"
    vector = [salloc, "-c", run, option]
    found = subprocess.run(vector, env=os.environ, capture_output=True, text=True, check=False)
    assert found.returncode == code, found.stderr
