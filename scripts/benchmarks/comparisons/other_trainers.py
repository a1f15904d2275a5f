"""What our steps cost in the trainers of other packages, beside these packages by themselves."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from hetero_hvd.errors import JobError
from tests.kit.fault_job import FaultJob

STEP_SECONDS, BATCH, NUM_STEPS = 0.1, 16, 70
NODES = ("alpha", "beta")
GOAL_RATIO = 0.01
OURS, OWN_LOOP, HOROVOD = "ours", "own loop", "Horovod"


class OtherTrainer(NamedTuple):
    """A trainer of another package.

    Attributes:
        name: Of it, in words.
        package: The package, as the workload calls its steps.
        plain: How these steps are taken, in words.
        ours: How ours are.
        workload: The module that takes them.
    """

    name: str
    package: str
    plain: str
    ours: str
    workload: str


HUGGING_FACE = OtherTrainer(
    name="Hugging Face's Trainer",
    package="transformers",
    plain="`transformers.Trainer`, each process by itself",
    ours="our `Trainer` for transformers",
    workload="benchmarks.workloads.hugging_face_steps",
)
LIGHTNING = OtherTrainer(
    name="Lightning",
    package="Lightning",
    plain="`lightning.pytorch.Trainer`, each process by itself",
    ours="the same with `HeteroStrategy`",
    workload="benchmarks.workloads.lightning_steps",
)


def hugging_face(effort: Effort, say: Say) -> Iterator[Table]:
    """Time of a step on two equal workers, four ways in turns."""
    yield _compared(HUGGING_FACE, effort, say)


def lightning(effort: Effort, say: Say) -> Iterator[Table]:
    """Time of a step on two equal workers, four ways in turns."""
    yield _compared(LIGHTNING, effort, say)


def _compared(other: OtherTrainer, effort: Effort, say: Say) -> Table:
    titles = {
        other.package: other.plain,
        HOROVOD: "the same, and gradients averaged by `hvd.grouped_allreduce_`",
        OWN_LOOP: "a loop with `hetero_hvd.Trainer`",
        OURS: other.ours,
    }
    say(f"{effort.repeats} rounds of {NUM_STEPS} steps in each of {len(titles)} ways")
    found = _measure(other.workload, effort.repeats)
    ratios = {name: median(_beside(found[name], found[HOROVOD])) for name in titles}
    return Table(
        title=other.name,
        text="Two equal workers. The model holds its passes, from the begin of forward to the last "
        f"gradient, to {1000 * STEP_SECONDS:g} ms: what a step takes longer is overhead, such as "
        "reduction, optimizer, logs and callbacks. The ways take turns in the same processes, each "
        "round begins with another one, and is compared by itself: the mean of its steps with that "
        "of Horovod alone. Of all rounds the median counts.",
        columns=("steps taken by", "milliseconds per step", "beside Horovod alone"),
        rows=[
            (title, f"{1000 * median(found[name]):.2f}", f"{ratios[name]:+.2%}")
            for name, title in titles.items()
        ],
        numbers=[
            Number(
                quantity=f"{other.name}, steps of {1000 * STEP_SECONDS:g} ms",
                goal=f"<= {GOAL_RATIO:.0%} slower than with Horovod alone",
                found=f"{ratios[OURS]:+.2%}",
                is_reached=ratios[OURS] <= GOAL_RATIO,
            )
        ],
        measured={title: found[name] for name, title in titles.items()},
    )


def _beside(seconds: list[float], others: list[float]) -> list[float]:
    """How much longer, round by round."""
    return [one / other - 1 for one, other in zip(seconds, others, strict=True)]


def _measure(workload: str, num_rounds: int) -> dict[str, list[float]]:
    """Name of the way to the seconds of a step in each round.

    Raises:
        JobError: The job failed.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sizes = {"num_steps": NUM_STEPS, "num_workers": len(NODES), "batch": BATCH}
        words = {"num_rounds": num_rounds, "step_seconds": STEP_SECONDS, **sizes}
        (folder / "job.json").write_text(json.dumps(words))
        command = [sys.executable, "-m", workload, str(folder)]
        job = FaultJob(folder, NODES, settings={"balance": False}, command=command)
        if job.wait(60.0 + 4 * NUM_STEPS * STEP_SECONDS * num_rounds * 3):
            raise JobError(f"the job failed:\n{job.console}")
        found: dict[str, list[float]] = json.loads((folder / "result.json").read_text())
        return found
