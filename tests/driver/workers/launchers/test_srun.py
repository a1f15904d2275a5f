"""What is particular about steps of a Slurm job: their options, what they inherit, a lost node."""

import asyncio
import gzip
import io
import re
import time
from pathlib import Path

import pytest

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.workers.gpu_counts import count_gpus
from hetero_hvd.driver.workers.launch_order import launch_order
from hetero_hvd.driver.workers.launchers.registry import launcher_of
from hetero_hvd.driver.workers.launchers.srun import (
    ABOUT_ONE_STEP,
    NOT_OF_THIS_NODE,
    OF_ALL_STEPS,
    srun_vector,
)
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION
from tests.leftovers import processes_of, wait_until


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, ["--nodelist=gpu1"]),
        ({"srun_options": {"nodelist": "gpu_1"}}, ["--nodelist=gpu_1"]),
        (
            {"srun_options": {"het-group": "1", "exact": ""}},
            ["--nodelist=gpu1", "--het-group=1", "--exact"],
        ),
    ],
)
def test_srun_gets_an_argument_vector(settings, options):
    """One task on one node, whatever the allocation's own options were."""
    node = NodeConfig(name="gpu1", launcher="srun", python="/opt/my python", **settings)
    vector = launcher_of(node).command(node, ("--gpus",), "")
    assert vector[0] == "env"
    at = vector.index("srun")
    assert vector[at + 1 : at + 3] == ["--nodes=1", "--ntasks=1"]
    words = ["--", "/opt/my python", "-m", "hetero_hvd.supervisor", "--step", "--gpus"]
    assert vector[-len(words) - len(options) :] == [*options, *words]


@pytest.fixture
def allocation(slurm, monkeypatch):
    """The test is in a Slurm job of all nodes, with both GPUs of those that have some."""
    environment = slurm.allocation("-w", "fast1,fast2,slow1")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    yield slurm
    slurm.end(environment["SLURM_JOB_ID"])


def slurm_node(name):
    """A node of the allocation."""
    return NodeConfig(name=name, launcher="srun")


PAGE = Path("/usr/share/man/man1/srun.1.gz")


def documented():
    """The variables that srun takes for options, as its manual lists them; none without one."""
    if not PAGE.exists():
        return []
    text = gzip.decompress(PAGE.read_bytes()).decode(errors="replace")
    section = text.partition('.SH "INPUT ENVIRONMENT VARIABLES"')[2].partition(".SH ")[0]
    return re.findall(r"\\fB([A-Z]+_[A-Z0-9_]+)\\fR", section.replace("\\_", "_"))


def test_the_manual_of_srun_names_no_variable_that_is_not_thought_of():
    """Each is either of use to all steps, or left out; none is both."""
    names = documented()
    assert len(names) > 90 or not PAGE.exists()
    unknown = [n for n in names if not n.startswith("SRUN_") and n not in OF_ALL_STEPS]
    assert [name for name in unknown if name not in ABOUT_ONE_STEP] == []
    assert not OF_ALL_STEPS & (ABOUT_ONE_STEP | set(NOT_OF_THIS_NODE))


@pytest.mark.parametrize("name", sorted({*ABOUT_ONE_STEP, *NOT_OF_THIS_NODE, "SRUN_NEW"}))
def test_what_would_make_another_step_is_left_out(monkeypatch, name):
    """Also options of srun that this version of it does not know."""
    node = slurm_node("gpu1")
    monkeypatch.setenv(name, "1")
    vector = srun_vector(node, ["true"])
    at = vector.index(name)
    assert vector[at - 1] == "-u"
    assert at < vector.index("srun")


@pytest.mark.parametrize("name", [*sorted(OF_ALL_STEPS), "SLURM_ARRAY_TASK_ID", "SLURM_SUBMIT_DIR"])
def test_what_a_step_or_a_script_needs_is_handed_down(monkeypatch, name):
    """The job and its cluster, what the user wants of all steps, what scripts read."""
    monkeypatch.setenv(name, "1")
    assert name not in srun_vector(slurm_node("gpu1"), ["true"])


LEFT = {
    "SLURM_NTASKS_PER_NODE": "7",
    "SLURM_MEM_PER_CPU": "100",
    "SLURM_GPUS": "8",
    "SLURM_GPUS_PER_NODE": "9",
    "SLURM_LABELIO": "1",
    "SLURM_EXPORT_ENV": "NONE",
    "SRUN_EXPORT_ENV": "NONE",
    "SLURM_NO_KILL": "1",
    "SLURM_STDINMODE": "none",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x800",
    "SLURM_DISTRIBUTION": "arbitrary",
    "SLURM_HOSTFILE": "/nowhere",
    "SLURM_THREADS_PER_CORE": "9",
    "SRUN_CPUS_PER_TASK": "99",
    "SLURM_TIMELIMIT": "nonsense",
    "SLURM_REMOTE_CWD": "/nowhere",
    "SLURM_CONSTRAINT": "nothing",
    "SLURM_MPI_TYPE": "nonsense",
}
"""Variables by which srun would do something else."""


@pytest.mark.process
@pytest.mark.usefixtures("allocation")
def test_a_node_has_no_gpu_of_the_drivers_node(monkeypatch):
    """Of the allocation's options and devices a step inherits what Slurm gives to its node."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.setenv(variable, "0,1,2")
    for variable, value in LEFT.items():
        monkeypatch.setenv(variable, value)
    assert asyncio.run(count_gpus(slurm_node("slow1"))) == 0
    assert asyncio.run(count_gpus(slurm_node("fast1"))) == 0  # it has two, none is granted


@pytest.mark.process
def test_a_node_that_fails_is_a_lost_worker_at_once(allocation, tmp_path, monkeypatch):
    """Though srun ends with 0; the node's name is in the output."""
    for variable, value in LEFT.items():
        monkeypatch.setenv(variable, value)

    async def main():
        console = Console(io.StringIO())
        output = WorkerOutput(console, tmp_path / "fast2-0.log", "")
        node = slurm_node("fast2")
        command = ("sh", "-c", f"cd {tmp_path}; touch up; exec sleep 50")
        process = await WorkerProcess.start(node, launch_order(node, 0, command, {}), output)
        await asyncio.to_thread(wait_until, (tmp_path / "up").exists, 10, "the worker")
        await asyncio.to_thread(allocation.set_down, "fast2")
        began_at_seconds = time.monotonic()
        code = await asyncio.wait_for(process.exited, 10)
        took_seconds = time.monotonic() - began_at_seconds
        output.close()
        console.close()
        return code, took_seconds

    code, took_seconds = asyncio.run(main())
    assert code == EXIT_NO_CONNECTION
    assert took_seconds < 2
    assert "Node failure on fast2" in (tmp_path / "fast2-0.log").read_text()
    wait_until(lambda: not processes_of(tmp_path), 15, "the end of the worker")
