"""Workers of this machine under `horovodrun`: for measurements in which no launcher of ours is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.peers import execute, horovodrun
from tests.kit.checkout import variables

NUM_WORKERS = 2

T = TypeVar("T")


def result_of(
    workload: str,
    job: Mapping[str, Any],
    kind: type[T],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 400.0,
) -> T:
    """Run a workload on two workers with one thread each and even shares.

    Args:
        workload: Module that takes a folder, reads its `job.json` and writes its `result.json`.
        job: What it reads.
        kind: Type of what it writes.
        environment: Further variables of the workers.
        timeout_seconds: For all of it.

    Returns:
        What it wrote.

    Raises:
        JobError: The run failed.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "job.json").write_text(json.dumps(job))
        own = {"OMP_NUM_THREADS": "1", "HETERO_HVD_BALANCE": "false"}
        every = variables(**own, **(environment or {}))
        command = [*horovodrun(NUM_WORKERS), "-m", workload, str(folder)]
        execute(command, folder, every, timeout_seconds)
        return msgspec.json.decode((folder / "result.json").read_bytes(), type=kind)
