"""A job that Slurm would end with one of its nodes is refused."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from hetero_hvd.errors import UserError
from hetero_hvd.slurm.allocation import Allocation, GrantedNode
from hetero_hvd.slurm.node_loss import check_no_kill, note_of_first_part
from tests.slurm.conftest import ABOUT


def job(num_nodes):
    """A job of so many nodes."""
    nodes = tuple(GrantedNode(slurm_name=f"fast{number}") for number in range(num_nodes))
    return Allocation(number=12, label="12", nodes=nodes)


SURVIVE = {
    "option": "#SBATCH --no-kill",
    "short": "#SBATCH -k",
    "among others": "#SBATCH -N4 -k --gpus=1",
    "the last counts": "#SBATCH --no-kill=off\n#SBATCH --no-kill",
    "behind other letters": "#SBATCH -Hk",
    "before a value": "#SBATCH -kN2",
    "its begin": "#SBATCH --no-k",
    "among comments": "# text\n\n  # more\n#SBATCH --no-kill # why",
    "an open quote": "#SBATCH --no-kill --comment=don't",
    "the first part": "#SBATCH --no-kill\n#SBATCH hetjob\n#SBATCH -N2",
}
END = {
    "none": "#SBATCH -N4",
    "off": "#SBATCH --no-kill=off",
    "the last counts": "#SBATCH --no-kill\n#SBATCH --no-kill=off",
    "a comment": "# SBATCH --no-kill",
    "another command": "srun --no-kill train",
    "another option": "#SBATCH --kill-on-invalid-dep=yes",
    "the value of a short one": "#SBATCH -Jk",
    "the value of a long one": "#SBATCH --comment='call it --no-kill'",
    "behind a command": "module load cuda\n#SBATCH --no-kill",
    "a later part": "#SBATCH -N2\n#SBATCH hetjob\n#SBATCH --no-kill",
    "a later part by its old name": "#SBATCH -N2\n#SBATCH packjob\n#SBATCH --no-kill",
}
"""Of a job of several parts Slurm takes the first one's option for all."""


@pytest.mark.parametrize("lines", SURVIVE.values(), ids=SURVIVE)
def test_the_batch_script_says_it(programs, lines):
    """However it is written."""
    (programs / "scontrol.script").write_text(f"#!/bin/sh\n{lines}\nexec train\n")
    assert not check_no_kill(job(2), {})


@pytest.mark.parametrize("lines", END.values(), ids=END)
def test_without_it_the_job_is_refused_in_one_line(programs, lines):
    """Which says what would happen, and what to write where."""
    (programs / "scontrol.script").write_text(f"#!/bin/sh\n{lines}\n")
    with pytest.raises(UserError, match="add the line '#SBATCH --no-kill'") as error:
        check_no_kill(job(2), {})
    assert "\n" not in str(error.value)
    check_no_kill(job(1), {})  # its one node is the driver's own


@pytest.fixture
def without_script(programs):
    """The job is no batch job."""
    (programs / "scontrol.job").write_text(ABOUT.format(requeue=1, batch=0))


@pytest.mark.usefixtures("without_script")
def test_where_nothing_can_be_seen_a_note_is_all():
    """In the shell that salloc opens on a node (`use_interactive_step`), salloc is elsewhere."""
    note = check_no_kill(job(2), {})
    assert note.startswith("note: without --no-kill, which cannot be seen from here, Slurm ends")
    assert "\n" not in note
    assert not check_no_kill(job(1), {})
    assert not check_no_kill(job(2), {"SLURM_NO_KILL": "1"})


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("batch", [1, 0])
@pytest.mark.parametrize("name", ["SBATCH_NO_KILL", "SALLOC_NO_KILL", "SLURM_NO_KILL"])
def test_the_environment_says_it(programs, name, batch):
    """As far as it is about this job, and not about one around it that has called its program."""
    (programs / "scontrol.job").write_text(ABOUT.format(requeue=1, batch=batch))
    (programs / "scontrol.script").write_text("#!/bin/sh\n")
    if name == ("SALLOC_NO_KILL" if batch else "SBATCH_NO_KILL"):
        with pytest.raises(UserError) if batch else nullcontext():
            assert check_no_kill(job(2), {name: "1"}).startswith("note: without --no-kill")
        return
    assert not check_no_kill(job(2), {name: "1"})
    assert not check_no_kill(job(2), {name: ""})  # sbatch takes it so, too
    with pytest.raises(UserError) if batch else nullcontext():
        assert check_no_kill(job(2), {name: "no"}).startswith("note: without --no-kill")


@pytest.mark.parametrize(
    ("groups", "is_told"),
    [((None, None), False), ((0, 0, 1), False), ((0, 1, 1), True), ((0, 1), True), ((0,), False)],
)
def test_a_first_part_of_one_node_is_told(groups, is_told):
    """Slurm requeues such a job whichever node fails, also with --no-kill."""
    nodes = tuple(
        GrantedNode(slurm_name=f"fast{number}", group=group) for number, group in enumerate(groups)
    )
    found = note_of_first_part(Allocation(number=12, label="12", nodes=nodes))
    assert found.startswith("note: the first part") is is_told


CODE = """
from hetero_hvd.slurm.node_loss import check_no_kill
from hetero_hvd.slurm.allocation import Allocation, GrantedNode
nodes = tuple(GrantedNode(slurm_name=name) for name in ("fast1", "fast2"))
assert not check_no_kill(Allocation(number=12, label="12", nodes=nodes), {})
"""


@pytest.mark.usefixtures("without_script")
@pytest.mark.parametrize(
    ("options", "code"), [("--no-kill", 0), ("-k", 0), ("-N2", 2), ("-N2 srun -k", 2)]
)
def test_the_salloc_above_says_it(tmp_path, options, code):
    """It is an ancestor of this process."""
    salloc = tmp_path / "salloc"
    salloc.symlink_to(sys.executable)
    run = f"import subprocess, sys; sys.exit(subprocess.call([{sys.executable!r}, '-c', {CODE!r}]))"
    vector = [salloc, "-c", run, *options.split()]
    found = subprocess.run(vector, env=os.environ, capture_output=True, text=True, check=False)
    assert found.returncode == code, found.stderr
    assert ("add the line '#SBATCH --no-kill'" in found.stderr) is bool(code)
