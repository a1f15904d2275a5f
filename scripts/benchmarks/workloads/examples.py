"""Runs a script of docs/examples in several ways, in turns: `… FOLDER` with its job.json.

The script itself is run, as it stands; its trainer is given the options of the way, and says when a
step was applied. The first rank leaves result.json: name of the way to what it saw.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

import hetero_hvd
from benchmarks.workloads.training import meet
from hetero_hvd.errors import UserError
from hetero_hvd.messages.launch import LAUNCH_VARIABLE, launch_from_text, launch_to_text
from hetero_hvd.worker.comm.operation_log import OperationLog

SCRIPTS = Path(__file__).parents[3] / "docs" / "examples"
ADAPTER = "hetero_hvd.integrations.huggingface.trainer"
IMPORTS = {
    "resnet": ("hetero_hvd.data",),
    "gpt2": ("hetero_hvd.data", "transformers.models.gpt2.modeling_gpt2"),
    "bert": ("hetero_hvd.data", "transformers.models.bert.modeling_bert", ADAPTER),
}
"""Example to what it takes long to import: done before anything is timed."""

launched = OperationLog.launched


class Way(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to train.

    Attributes:
        flags: Further words for the script.
        options: Arguments of the trainer that the script does not give.
        job: Settings of the job, as in nodes.yaml.
    """

    flags: list[str] = []
    options: dict[str, Any] = {}
    job: dict[str, Any] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to train.

    Attributes:
        example: Name of the script.
        flags: Words for it.
        ways: By name.
        meeting: Folder in which each worker leaves a file when it could begin, and then waits for
            one named `go`; empty: it begins.
    """

    example: str
    flags: list[str]
    ways: dict[str, Way]
    meeting: str = ""


class Seen(msgspec.Struct, kw_only=True):
    """What one worker saw of one way.

    Attributes:
        ended_at_seconds: When each step was applied, of any origin.
        losses: Of each step.
        num_bytes: Given to reductions by this worker until the end of each step.
        used_seconds: Processor time of this process at the end of each step, of any origin.
        peak_bytes: The most memory that this process has held by then.
        refused: Why the product does not train in this way; empty: it does.
    """

    ended_at_seconds: list[float] = []
    losses: list[float] = []
    num_bytes: list[int] = []
    used_seconds: list[float] = []
    peak_bytes: int = 0
    refused: str = ""


class Watch:
    """Gives trainers the options of a way, and notes their steps.

    Args:
        way: The way.
    """

    def __init__(self, way: Way) -> None:
        self._way = way
        self._num_bytes = 0
        self.seen = Seen()

    def watched(self, base: type) -> type:
        """A kind of trainer that is watched.

        Args:
            base: `hetero_hvd.Trainer`, or a kind of it.
        """
        watch = self

        class Watched(base):  # type: ignore[misc]  # of either kind
            def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - as there
                own = named.pop("after_step", None)

                def after_step() -> None:
                    watch.step_applied(self.loss)
                    if own is not None:
                        own()

                options = named | watch._way.options
                super().__init__(*given, after_step=after_step, **options)

        return Watched

    def step_applied(self, loss: float) -> None:
        """A step has ended with that loss."""
        self.seen.ended_at_seconds.append(time.perf_counter())
        self.seen.losses.append(loss)
        self.seen.num_bytes.append(self._num_bytes)
        self.seen.used_seconds.append(time.process_time())
        self.seen.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def counted(self) -> Callable[[OperationLog, Any, str, str, int], None]:
        """In place of `OperationLog.launched`: counts what is given to reductions."""

        def count(log: OperationLog, handle: object, op: str, backend: str, num_bytes: int) -> None:
            self._num_bytes += num_bytes if op == "allreduce" else 0
            launched(log, handle, op, backend, num_bytes)

        return count


def run(job: Job, way: Way, folder: Path) -> Seen:
    """Run the script once.

    Args:
        job: Which, and how.
        way: The way.
        folder: With its data in `data`; what it writes beside that goes into `left`.
    """
    watch = Watch(way)
    as_it_was = os.environ.get(LAUNCH_VARIABLE, "{}")
    launch = launch_from_text(as_it_was)
    settings = msgspec.structs.replace(launch.job, **way.job)
    os.environ[LAUNCH_VARIABLE] = launch_to_text(msgspec.structs.replace(launch, job=settings))
    home, name = (
        (sys.modules[ADAPTER], "Steps") if job.example == "bert" else (hetero_hvd, "Trainer")
    )
    trainer = getattr(home, name)
    setattr(home, name, watch.watched(trainer))
    OperationLog.launched = watch.counted()  # type: ignore[assignment,method-assign]
    script = SCRIPTS / f"{job.example}.py"
    output = ["--output", str(folder / "left")] if job.example == "bert" else []
    sys.argv = [str(script), str(folder / "data"), *job.flags, *way.flags, *output]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except (UserError, ValueError) as error:  # the script's own, where it counts on its steps
        watch.seen.refused = f"{type(error).__name__}: {error}"
    finally:
        setattr(home, name, trainer)
        OperationLog.launched = launched  # type: ignore[method-assign]
        os.environ[LAUNCH_VARIABLE] = as_it_was
    return watch.seen


def main() -> None:
    """Run the script in every way."""
    folder = Path(sys.argv[1])
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for name in IMPORTS[job.example]:
        importlib.import_module(name)
    meet(job.meeting)
    found = {name: run(job, way, folder) for name, way in job.ways.items()}
    if hetero_hvd.init().collective.rank == 0:
        (folder / "result.json").write_text(json.dumps(msgspec.to_builtins(found)))


if __name__ == "__main__":
    main()
