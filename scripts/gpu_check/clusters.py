"""Trainings on clusters of this one machine: the card's worker, and CPU workers beside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_check.site import RUN_SECONDS, SCRIPTS, CheckError, Site

JOB = SCRIPTS / "gpu_check" / "job.py"

ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
"""So that host memory that was freed, or kept for threads, does not soften a limit on it."""

NO_CARD = {"CUDA_VISIBLE_DEVICES": "", "ONEAPI_DEVICE_SELECTOR": "opencl:cpu"}
CPUS = ("cpu1", "cpu2", "cpu3")
HINTS = {"card": 1.0, "cpu1": 0.5, "cpu2": 0.3, "cpu3": 0.2}
"""For the first plan, so that shares are unequal from the first step, on equal processors too."""

ALL = ("card", *CPUS)


class Run:
    """A training that has ended.

    Args:
        folder: What it left: `left-NAME.json` of each worker, `out`.
        printed: By the driver.
    """

    def __init__(self, folder: Path, printed: str) -> None:
        self.folder = folder
        self.printed = printed
        files = sorted(folder.glob("left-*.json"))
        self.left = {
            file.stem.removeprefix("left-").partition(":")[0]: json.loads(file.read_text())
            for file in files
        }

    @property
    def card(self) -> dict[str, Any]:
        """What the card's worker left.

        Raises:
            CheckError: Nothing, or it did not compute on the card.
        """
        if "card" not in self.left:
            raise CheckError(f"the card's worker did not come to the end: see {self.folder}")
        return self.left["card"]


def node(site: Site, name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - of nodes.yaml
    """An entry of nodes.yaml; one whose name begins with `card` has the card."""
    devices = [0] if name.startswith("card") and site.has_card else []
    hint = {"relative_speed": HINTS[name]} if name in HINTS else {}
    return {"name": name, "slots": 1, "devices": devices, "env": ALLOCATOR} | hint | more


def train(
    site: Site,
    name: str,
    *,
    nodes: Sequence[str | dict[str, Any]] = ALL,
    flags: Sequence[str] = (),
    expected_code: int | None = 0,
    script: Sequence[str] = (str(JOB),),
    **job: Any,  # noqa: ANN401 - see `job.py`
) -> Run:
    """Train; what the workers left.

    Args:
        site: The machine.
        name: Of the folder.
        nodes: Names, or entries of nodes.yaml.
        flags: Further ones of `hetero-hvd run`.
        expected_code: The driver's exit code; None: any.
        script: What to run; it gets the folder.
        job: For the script.

    Raises:
        CheckError: It did not end as expected, or the card's worker was not on the card.
    """
    folder = site.folder(name)
    entries = [node(site, each) if isinstance(each, str) else each for each in nodes]
    settings = {"set_aside": "never"}  # what is checked is training together
    (folder / "nodes.yaml").write_text(json.dumps({"nodes": entries, "job": settings}))
    (folder / "job.json").write_text(json.dumps(job | {"device": site.device}))
    command = [site.python, "-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml")]
    command += ["--no-remember", "--output", str(folder / "out"), *flags]
    printed = site.run(
        [*command, "--", *script, str(folder)],
        log=folder / "printed",
        seconds=RUN_SECONDS,
        expected_code=expected_code,
    )
    run = Run(folder, printed)
    where = {n: left["device"] for n, left in run.left.items() if "device" in left}
    for worker, device in where.items():
        expected = site.device if worker.startswith("card") else "cpu"
        if not device.startswith(expected):
            raise CheckError(f"{worker} has trained on {device}, not on {expected}")
    return run


def alone(site: Site, name: str, *, script: Path = JOB, **job: Any) -> dict[str, Any]:  # noqa: ANN401
    """The same in one process on the CPU: what it left."""
    folder = site.folder(name)
    (folder / "job.json").write_text(json.dumps(job | {"device": "cpu"}))
    command = [site.python, str(script), str(folder)]
    site.run(command, log=folder / "printed", seconds=RUN_SECONDS, **NO_CARD)
    left: dict[str, Any] = json.loads((folder / "left-alone.json").read_text())
    return left


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference of two workers' parameters; NaN where one has any."""
    if len(one) != len(other):
        raise CheckError(f"{len(one)} parameters here, {len(other)} there")
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(differences) if all(d == d for d in differences) else float("nan")  # noqa: PLR0124


def check_there(run: Run, names: Sequence[str] = ALL) -> None:
    """All of these came to the end, and nobody else.

    Raises:
        CheckError: They did not: what the others agree on would prove little.
    """
    if set(run.left) != set(names):
        raise CheckError(
            f"these workers came to the end: {', '.join(sorted(run.left)) or 'none'}; must be "
            f"{', '.join(sorted(names))}: see {run.folder}"
        )


def spread(run: Run, names: Sequence[str] = ALL) -> float:
    """Largest difference between the workers' parameters at the end, all of whom are there."""
    check_there(run, names)
    first, *others = (left["parameters"] for left in run.left.values())
    return max(distance(first, other) for other in others)


def far(run: Run, expected: Sequence[float], names: Sequence[str] = ALL) -> float:
    """Largest difference between a worker's parameters and others; all workers are there."""
    check_there(run, names)
    return max(distance(left["parameters"], expected) for left in run.left.values())


def check_unequal(run: Run) -> dict[str, int]:
    """The parts of the workers in the first step; all equal would prove nothing."""
    parts = {name: left["parts"][0] for name, left in run.left.items()}
    if len(set(parts.values())) == 1 and len(parts) > 1:
        raise CheckError(f"all parts were equal: {parts}")
    return parts


def keep_little(folder: Path) -> None:
    """Drop what a run leaves in bulk."""
    shutil.rmtree(folder / "out" / "checkpoints", ignore_errors=True)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))
