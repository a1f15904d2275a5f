"""Out of memory, in earnest: one of three workers, at a step drawn by chance, in many runs."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.numbers import Number
from benchmarks.peers import OUTPUT, execute
from benchmarks.tables import FULL, Effort, Say, Table
from hetero_hvd.errors import JobError
from tests.kit.checkout import variables

NAMES = ("n0:0", "n1:0", "n2:0")
NUM_RUNS, NUM_QUICK_RUNS, SEED = 20, 3, 0
NUM_STEPS, BATCH = 12, 600
"""As in `workloads.oom`."""
TOLERANCE = 1e-5
"""Largest difference of a parameter, all of which are below 1: float32 sums in another order."""

TIMEOUT_SECONDS = 240.0
GOOD = "yes"
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
"""So that memory that was freed, or reserved for threads, does not soften the limit."""


def oom(effort: Effort, say: Say) -> Iterator[Table]:
    """Out of memory on one of three workers: is the same step finished, with the same result?"""
    num_runs = NUM_RUNS if effort.repeats >= FULL.repeats else NUM_QUICK_RUNS
    chance = np.random.default_rng(SEED)
    _, expected = _run(None, -1)
    rows: list[Sequence[str]] = []
    for number in range(num_runs):
        victim, step = NAMES[chance.integers(len(NAMES))], int(chance.integers(1, NUM_STEPS))
        try:
            cells = _judged(victim, step, expected)
        except JobError as error:
            say(str(error))
            cells = ("", "", "the job failed")
        say(f"run {number + 1} of {num_runs}: {victim} at step {step}: {'  '.join(cells)}")
        rows.append((victim, str(step), *cells))
    num_good = sum(row[-1] == GOOD for row in rows)
    yield Table(
        title="Out of memory on one of three workers",
        text=f"RLIMIT_AS leaves room for three quarters of a share before a step drawn by chance. "
        f"{NUM_STEPS} steps of {BATCH} samples, the balancer on. As it should "
        "be: the same step completes, all parameters are equal on the three workers and within "
        f"{TOLERANCE:g} of the run without a fault, and no size that failed is seen again.",
        columns=("worker", "step", "micro-batches tried in it", "difference", "as it should be"),
        rows=rows,
        numbers=[
            Number(
                quantity="out of memory on one of three workers: runs as they should be",
                goal=f"{num_runs} of {num_runs}",
                found=f"{num_good} of {num_runs}",
                is_reached=num_good == num_runs,
            )
        ],
    )


def _judged(victim: str, step: int, expected: np.ndarray[Any, Any]) -> tuple[str, str, str]:
    """Cells of a run's row: what was tried, how far off the result is, what is wrong."""
    records, parameters = _run(victim, step)
    error = float(np.abs(parameters - expected).max())
    wrong = _wrong(records, victim, step) + ([] if error <= TOLERANCE else ["another result"])
    sizes = [size for at, size in records[victim]["calls"] if at == step]
    return ", ".join(map(str, sizes)), f"{error:.1e}", "; ".join(wrong) or GOOD


def _run(victim: str | None, step: int) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """What each worker left, and the parameters, which are the same on all.

    Raises:
        JobError: The job failed, or the workers differ.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        nodes = [
            {"name": name.split(":")[0], "slots": 1, "devices": [], "env": ALLOCATOR}
            for name in NAMES
        ]
        (folder / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
        (folder / "job.json").write_text(json.dumps({"victim": victim, "step": step}))
        run = ["-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml")]
        run += ["--output", str(folder / "out"), "--no-remember", "--", "python", "-m"]
        command = [sys.executable, *run, "benchmarks.workloads.oom", str(folder)]
        try:
            execute(command, folder, variables(), TIMEOUT_SECONDS)
        except JobError as error:
            said = (folder / OUTPUT).read_text(errors="replace").splitlines()
            about = [line for line in said if line.startswith(f"{victim} ") or "loop" in line]
            raise JobError("\n".join([*about, str(error)])) from error
        records = {name: json.loads((folder / f"{name}.json").read_text()) for name in NAMES}
        parameters = [np.load(folder / f"{name}.npy") for name in NAMES]
    if any((other != parameters[0]).any() for other in parameters):
        raise JobError(f"the workers differ after {victim} ran out of memory at step {step}")
    return records, parameters[0]


def _wrong(records: dict[str, Any], victim: str, step: int) -> list[str]:
    """What is not as it should be, in words."""
    wrong = [
        f"{name} took {len(record['losses'])} steps"
        for name, record in records.items()
        if len(record["losses"]) != NUM_STEPS
    ]
    calls = records[victim]["calls"]
    failed, *smaller = [size for at, size in calls if at == step]
    if not smaller or max(smaller) >= failed:
        wrong.append("no smaller micro-batch was tried")
    if any(size >= failed for at, size in calls if at > step):
        wrong.append("the size that failed was tried again")
    return wrong
