"""Who has started a process as one of several, by what the launchers really set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_hvd.cli.train.run import check_started_once
from hetero_hvd.errors import UserError
from hetero_hvd.probes import other_launchers
from hetero_hvd.probes.kernel.ancestors import Ancestor
from hetero_hvd.probes.other_launchers import started_by

PROGRAMS = Path(sys.executable).parent
TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "TORCHELASTIC_RUN_ID": "none",
}
DEEPSPEED = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "CROSS_RANK": "0",
    "CROSS_SIZE": "2",
}
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "PMI_SIZE": "4", "PMI_RANK": "3"}
ENVIRONMENTS = {
    "nothing": ({}, None),
    "torchrun": (TORCHRUN, ("torchrun", 2, 1)),
    "torchrun on two nodes of one process": (
        TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        ("torchrun", 2, 1),
    ),
    "torchrun with one process": (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, None),
    "accelerate": (
        TORCHRUN | {"ACCELERATE_MIXED_PRECISION": "no"},
        ("accelerate launch", 2, 1),
    ),
    "deepspeed": (DEEPSPEED, ("deepspeed", 4, 0)),
    "a scheduler's own": (
        {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "master-0", "MASTER_PORT": "23456"},
        ("a launcher of torch.distributed", 3, 0),
    ),
    "a number without a rank": ({"WORLD_SIZE": "8"}, None),
    "no number": ({"WORLD_SIZE": "all", "RANK": "0"}, None),
    "Open MPI": (
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
        ("mpirun", 2, 0),
    ),
    "one process of Open MPI": ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, None),
    "MVAPICH": ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1"}, ("mpirun", 2, 1)),
    "MPICH": ({"PMI_SIZE": "2", "PMI_RANK": "1"}, ("mpiexec", 2, 1)),
    "jsrun": ({"JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "1"}, ("jsrun", 2, 1)),
    "srun": (SRUN, ("srun", 4, 3)),
    "a batch script of Slurm": ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_launchers_are_known_by_their_variables(name):
    """With how many processes they have started, and which this is."""
    environment, expected = ENVIRONMENTS[name]
    found = started_by(environment)
    assert (found and (found.launcher, found.num_processes, found.rank)) == expected


ONCE = {
    "torchrun": TORCHRUN,
    "deepspeed": DEEPSPEED,
    "srun": SRUN,
}


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_driver_is_started_once(name, rank):
    """Each process says why it ends: what they print may be in different places."""
    ranks = {"RANK", "SLURM_PROCID", "PMI_RANK"} & ONCE[name].keys()
    environment = ONCE[name] | dict.fromkeys(ranks, rank)
    with pytest.raises(UserError, match=f"was started by {name} in . processes"):
        check_started_once(environment)


MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
TWO = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
ONE = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
PMI = {"PMI_SIZE": "2", "PMI_RANK": "1"}
ABOVE = {
    "a batch script": ("12.batch", {}, {}, False),
    "one that was submitted in a step": ("12.batch", TWO | PMI, {}, False),
    "a batch script of an older Slurm": ("12.4294967294", TWO, {}, False),
    "one that was submitted under mpirun": ("12.batch", MPIRUN, {}, False),
    "mpirun in a batch script": ("12.batch", {}, MPIRUN, True),
    "salloc's shell on a node": ("12.interactive", TWO, {}, False),
    "salloc's shell where it was called": (None, {}, {}, False),
    "a step of one task": ("12.0", ONE, {}, False),
    "a step of one task in a job that was submitted in another": ("12.0", ONE | PMI, {}, False),
    "a step of two tasks": ("12.0", TWO, {}, True),
    "a step of two parts": ("13+1.0", TWO, {}, True),
    "mpirun's own step": ("12.0", ONE, MPIRUN, True),
    "a step whose daemon is not seen": (None, TWO, {}, True),
}
"""What the nearest slurmstepd calls itself, what it has started its first process with, what has
come since, and whether this is one of several."""


@pytest.mark.parametrize("case", ABOVE)
def test_what_a_job_was_submitted_with_is_no_sign(monkeypatch, case):
    """Only what was set below the nearest slurmstepd, or by it; one above that does not count."""
    daemon, first, since, is_several = ABOVE[case]
    above = [Ancestor(["train.py"], first | since)]
    above += [Ancestor(["bash"], first)] * bool(since)  # else this process is in its place
    if daemon is not None:
        above.append(Ancestor([f"slurmstepd: [{daemon}]"], {}))
        above += [Ancestor(["srun"], {}), Ancestor(["slurmstepd: [7.0]"], {})]
    monkeypatch.setattr(other_launchers, "ancestors", lambda: iter(above))
    found = started_by(first | since)
    assert (found is not None) == is_several


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "3"}])
def test_what_a_scheduler_sets_for_a_pod_does_not_keep_the_driver_from_starting(environment):
    """There it is one process, whatever the variables are meant for."""
    check_started_once(environment)


SCRIPT = """
import os, time
if os.environ["RANK"] == "0":
    time.sleep(1)  # the other one is ready long before
import torch, hetero_hvd
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(1, 1)
loader = DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2)
trainer = hetero_hvd.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
print("trains")
"""
REAL = {
    "torchrun": ["torchrun", "--standalone", "--nproc-per-node", "2"],
    "accelerate launch": ["accelerate", "launch", "--multi_gpu", "--num_processes", "2"],
}


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", REAL)
def test_a_real_launcher_is_refused_in_one_line(name, tmp_path):
    """By the first process only, before any data are loaded, with the command to use instead."""
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = [str(PROGRAMS / REAL[name][0]), *REAL[name][1:], "train.py"]
    if not Path(launch[0]).exists():
        pytest.skip(f"needs {REAL[name][0]}")
    environment = {n: v for n, v in os.environ.items() if not n.startswith("HOROVOD_")}
    done = subprocess.run(
        launch, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    lines = [line for line in said.splitlines() if "hetero-hvd" in line]
    expected = (
        f"hetero-hvd: train.py was started by {name} in 2 processes, of which each would train "
        "alone: start it once, by hetero-hvd run -f nodes.yaml -- train.py, where nodes.yaml says "
        "how many workers run where (docs/guide/migrate.md)"
    )
    assert lines == [expected], said
    assert done.returncode != 0
    assert "trains" not in said.splitlines()
