"""Under a real Slurm of four nodes: the start of a worker, a node that fails, an order to end."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from benchmarks.tables import Effort, Say, Table
from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.output.console import Console, WorkerOutput
from hetero_hvd.driver.workers.launch_order import launch_order
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.errors import JobError
from tests.kit.engines.slurm_cluster import SlurmCluster, slurm_cluster, why_not
from tests.kit.engines.slurm_job import BatchJob
from tests.kit.fault_job import SCRIPT, gap_seconds, pids_in, trace_in
from tests.kit.processes import is_running

STARTS = 3
"""Of each launcher in a turn."""

NODES, LOST = "fast1,fast2,slow1", "fast2"
LONG = {"epochs": 100_000}
KEPT = "keeps the state of step"
SRUN, LOCAL = "start through srun", "local start"
SRUN_OVER_LOCAL = "start through srun, over a local start"
DOWN = "a node set DOWN, until the next step of the others"
GAP = "between two steps of the others"
DRAINED = "SIGTERM, until all workers have ended and the state is kept"
ENDED = "SIGTERM, until Slurm says that it has ended"
GOALS = {SRUN_OVER_LOCAL: 0.2, DOWN: 0.5, DRAINED: 2.0}
"""Seconds, for the median."""


def slurm(effort: Effort, say: Say) -> Iterator[Table]:
    """Start, loss of a node and end of a job on a Slurm of four nodes."""
    if why := why_not():
        raise JobError(f"no Slurm: {why}")
    found: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as place,  # short, for its sockets
        slurm_cluster(Path(place) / "of") as cluster,
    ):
        for repeat in range(effort.repeats):
            say(f"turn {repeat + 1} of {effort.repeats}")
            for what, seconds in _starts(cluster, Path(place)).items():
                found[what] += seconds
            folder = Path(place) / f"job-{repeat}"
            folder.mkdir()
            for what, second in _one_job(cluster, folder).items():
                found[what].append(second)
            cluster.set_up()
    yield _table(found)


def _starts(cluster: SlurmCluster, folder: Path) -> dict[str, list[float]]:
    """Seconds of starts through srun and of local ones, in turns, and what the first cost more."""
    environment = cluster.allocation("-w", "slow1")
    found: dict[str, list[float]] = defaultdict(list)
    with mock.patch.dict(os.environ, environment):
        for _ in range(STARTS):
            through_srun = _start_seconds(NodeConfig(name="slow1", launcher="srun"), folder)
            local = _start_seconds(NodeConfig(name="slow1", launcher="local"), folder)
            found[SRUN].append(through_srun)
            found[LOCAL].append(local)
            found[SRUN_OVER_LOCAL].append(through_srun - local)
    cluster.end(environment["SLURM_JOB_ID"])
    return found


def _start_seconds(node: NodeConfig, folder: Path) -> float:
    """From the order to start a worker to the first instruction of its command."""
    log = folder / "start.log"
    code = "import time; print(time.monotonic())"
    command = (sys.executable, "-I", "-S", "-c", code)

    async def start() -> float:
        console = Console(io.StringIO())
        output = WorkerOutput(console, log, "")
        began = time.monotonic()
        process = await WorkerProcess.start(node, launch_order(node, 0, command, {}), output)
        exit_code = await asyncio.wait_for(process.exited, 30)
        output.close()
        console.close()
        if exit_code:
            raise JobError(f"{node.launcher} has not started it: {log.read_text()}")
        return began

    log.unlink(missing_ok=True)
    began = asyncio.run(start())
    return float(log.read_text().split()[-1]) - began


def _one_job(cluster: SlurmCluster, folder: Path) -> dict[str, float]:
    """A job that loses a node, then is asked to end: the seconds of both."""
    given = json.dumps({"folder": str(folder), **LONG})
    job = BatchJob(
        cluster, folder, "--output", "out", nodes=("-N3", "-w", NODES), script=(str(SCRIPT), given)
    )
    try:
        job.wait_for("3 workers train together")
        _wait_for_step(cluster, folder, 50)
        began = time.monotonic()
        cluster.set_down(LOST)
        cluster.wait_for(lambda: _first_of(folder, 2))
        found = {DOWN: _first_of(folder, 2) - began}
        found[GAP] = gap_seconds(folder, before=3, after=2)
        _wait_for_step(cluster, folder, 100)
        pids = [pid for worker, pid in pids_in(folder).items() if not worker.startswith(LOST)]
        began = time.monotonic()
        cluster.ask("scancel", job.number)
        while KEPT not in job.said or any(map(is_running, pids)):
            if time.monotonic() > began + 30:
                raise JobError(f"the job has not ended: {job.said[-2000:]}")
            time.sleep(0.005)
        found[DRAINED] = time.monotonic() - began
        job.wait()
        found[ENDED] = time.monotonic() - began
    finally:
        cluster.end(job.number)
    return found


def _wait_for_step(cluster: SlurmCluster, folder: Path, step: int) -> None:
    cluster.wait_for(lambda: max((line[1] for line in trace_in(folder)), default=0) >= step, 120)


def _first_of(folder: Path, num_workers: int) -> float:
    """When the first step of so many workers was applied; 0: not yet."""
    return min((line[0] for line in trace_in(folder) if line[3] == num_workers), default=0.0)


def _table(found: Mapping[str, list[float]]) -> Table:
    table = Table(
        title="Under Slurm",
        text="Seconds; four nodes of a real Slurm on this machine, three of them in the job, steps "
        "of 20 ms. A start is from the order to the first instruction of the worker's command, "
        "through srun and locally in turns. That no sample is lost or used twice is checked by "
        "tests/driver/test_slurm.py.",
        columns=("what", "median, range", "all"),
        measured=dict(found),
    )
    for what, seconds in found.items():
        table.add_seconds(what, seconds, goal_seconds=GOALS.get(what), quantity=f"Slurm: {what}")
    return table
