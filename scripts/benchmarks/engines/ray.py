"""On a real Ray of three nodes: how long the others stand still when one of them is killed."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.tables import Effort, Say, Table
from hetero_hvd.errors import JobError
from tests.kit.engines.ray_job import RayJob
from tests.kit.engines.ray_nodes import RayRig, packages
from tests.kit.fault_job import SCRIPT, trace_in

NAMES, LOST = ("alpha", "beta", "gamma"), "beta"
KINDS = {"Ray's own niceness": None, "RAY_worker_niceness=0": 0}
GOAL_SECONDS = 1.0
WAIT_SECONDS = 60.0


def ray(effort: Effort, say: Say) -> Iterator[Table]:
    """A killed node of a Ray cluster, with Ray's niceness and without it in turns."""
    try:
        packages()
    except subprocess.CalledProcessError as error:
        raise JobError("Ray cannot be had from PyPI") from error
    found: dict[str, list[float]] = defaultdict(list)
    for repeat in range(effort.repeats):
        for kind, niceness in KINDS.items():
            with tempfile.TemporaryDirectory(prefix="ray-job-") as place:
                found[kind].append(_lost_node_seconds(Path(place), niceness))
            say(f"{kind} {repeat + 1} of {effort.repeats}: {found[kind][-1]:.2f} s")
    yield _table(found)


def _lost_node_seconds(place: Path, niceness: int | None) -> float:
    """From the order to kill all processes of a node to the next step of the others."""
    folder = place / "job"
    folder.mkdir()
    rig = RayRig(place / "cluster", niceness=niceness)
    try:
        for name in NAMES:
            rig.add(name)
        given = json.dumps({"folder": str(folder), "epochs": 100_000})
        job = RayJob(rig, folder, "--no-remember", script=(str(SCRIPT), given))
        try:
            job.wait_for("3 workers train together")
            _first_step(folder, lambda line: line[1] >= 50)  # noqa: PLR2004 - it is settled
            began = time.monotonic()
            rig.kill(LOST)
            return _first_step(folder, lambda line: line[3] == len(NAMES) - 1) - began
        finally:
            job.kill()
    finally:
        rig.close()


def _first_step(folder: Path, is_meant: Callable[[list[float]], bool]) -> float:
    """When the first of these steps was applied."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (meant := [line[0] for line in trace_in(folder) if is_meant(line)]):
        if time.monotonic() > deadline:
            raise JobError(f"there is no such step in {WAIT_SECONDS:g} s")
        time.sleep(0.05)
    return meant[0]


def _table(found: dict[str, list[float]]) -> Table:
    table = Table(
        title="On a Ray cluster",
        text="Seconds from the order to kill all processes of one of three nodes, which are "
        "processes of this machine, to the next step that the two others apply; steps of 20 ms, a "
        "new cluster each time. Ray starts its workers with nice 15, unless it is told otherwise.",
        columns=("Ray is started with", "median, range", "all"),
        measured=dict(found),
    )
    for kind, seconds in found.items():
        quantity = f"Ray: a killed node, until the next step of the others, {kind}"
        table.add_seconds(kind, seconds, goal_seconds=GOAL_SECONDS, quantity=quantity)
    return table
