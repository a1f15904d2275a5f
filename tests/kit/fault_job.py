"""A job with scheduled faults: started through the command line, judged by what it leaves."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.kit.checkout import variables

SCRIPT = Path(__file__).with_name("fault_script.py")
END_SECONDS = 15.0
DEFAULT_BATCH_SIZE = 64

GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
NODE_NAMES = (*GREEK, *(f"node{number}" for number in range(len(GREEK), 64)))


def write_nodes(
    path: Path, nodes: Sequence[str | Mapping[str, object]], **settings: object
) -> None:
    """Put a nodes.yaml in place, in one piece.

    Args:
        path: Where.
        nodes: Whole entries, or names of local nodes with one CPU slot each; a name may stand there
            several times: so many slots.
        settings: Of the job; `emulate` is that of each local node, `guard` that of all.
    """
    emulate = settings.pop("emulate", None)
    guard = settings.pop("guard", None)
    more = {"emulate": emulate} if emulate else {}
    entries: list[Mapping[str, object]] = [node for node in nodes if not isinstance(node, str)]
    slots = Counter(node for node in nodes if isinstance(node, str))
    entries += [{"name": name, "slots": n, "devices": [], **more} for name, n in slots.items()]
    content: dict[str, object] = {"nodes": entries} | ({"job": settings} if settings else {})
    content |= {"guard": guard} if guard is not None else {}
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content, indent=1) + "\n")  # JSON is YAML too
    fresh.replace(path)


class FaultJob:
    """One job of `fault_script.py`.

    Args:
        folder: For everything; the processes' working directory.
        nodes: See `write_nodes`.
        arguments: Further arguments of `hetero-hvd run`.
        settings: Of the job, for nodes.yaml.
        command: Another script and its arguments.
        subcommand: Of `hetero-hvd`.
        script: Fields of `fault_script.Script`.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str | Mapping[str, object]],
        *,
        arguments: Sequence[str] = ("--output", "out"),
        settings: dict[str, object] | None = None,
        command: Sequence[str] = (),
        subcommand: str = "run",
        **script: Any,  # noqa: ANN401 - plain data
    ) -> None:
        self.folder = folder
        self.faults: list[dict[str, Any]] = list(script.get("faults", []))
        self.script = script
        self.settings = settings or {}
        self.nodes_file = folder / "nodes.yaml"
        write_nodes(self.nodes_file, nodes, **self.settings)
        words = command or [str(SCRIPT), json.dumps({"folder": str(folder), **script})]
        self._output = (folder / "console.txt").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hetero_hvd", subcommand, *arguments, "--", *words],
            cwd=folder,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=variables(OMP_NUM_THREADS="1"),
            start_new_session=True,
        )

    @property
    def console(self) -> str:
        """What the driver has shown so far."""
        return (self.folder / "console.txt").read_text()

    def wait(self, seconds: float = 100.0) -> int:
        """The exit code; the job is killed if it takes longer."""
        try:
            return self.process.wait(seconds)
        finally:
            self.close()

    def wait_for(self, text: str, seconds: float = 30.0, *, times: int = 1) -> None:
        """Wait until the console shows a text so many times.

        Raises:
            TimeoutError: It does not.
        """
        deadline = time.monotonic() + seconds
        while self.console.count(text) < times:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"no {text!r} in:\n{self.console}")
            time.sleep(0.02)

    def wait_for_step(self, step: int, seconds: float = 30.0) -> None:
        """Wait until any worker has applied so many steps."""
        deadline = time.monotonic() + seconds
        while max((line[1] for line in self.trace()), default=0) < step:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"step {step} is not reached:\n{self.console}")
            time.sleep(0.02)

    def close(self) -> None:
        """End the driver if it still runs; its workers follow."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._output.close()

    def pids(self) -> dict[str, int]:
        """Process id of each worker that has applied a step, the newest of each."""
        return pids_in(self.folder)

    def trace(self, but: Sequence[str] = ()) -> list[list[float]]:
        """The lines of all workers; see `trace_in`."""
        return trace_in(self.folder, but)

    def fired(self) -> list[float | None]:
        """When each fault happened, monotonic seconds; None where it has not."""
        marks = [self.folder / f"fired-{index}" for index in range(len(self.faults))]
        return [json.loads(m.read_text())["at_seconds"] if m.exists() else None for m in marks]

    def recovery_seconds(self, index: int = 0) -> float:
        """From a fault to the next step that the others have applied.

        Raises:
            ValueError: The fault did not happen, or no step followed.
        """
        at_seconds, fault = self.fired()[index], self.faults[index]
        if at_seconds is None:
            raise ValueError(f"fault {index} has not fired:\n{self.console}")
        guilty = [f["worker"] for f in self.faults[: index + 1]]
        steps = [line for line in self.trace(guilty) if line[0] > at_seconds]
        step = fault.get("step", min((line[1] for line in steps), default=0) - 1)
        after = [line[0] for line in steps if line[1] > step]
        if not after:
            raise ValueError(f"no step after fault {index}:\n{self.console}")
        return min(after) - at_seconds

    def lost_steps(self, index: int = 0, num_after: int = 24) -> float:
        """What a pause costs the others: batches that they would have trained more at their pace.

        It is counted in samples, as rounds may have any number of them.

        Args:
            index: Of the fault.
            num_after: Steps after it in which the pause is over, the second half at their pace.

        Raises:
            ValueError: The fault did not happen, or too few steps followed.
        """
        at_seconds = self.fired()[index]
        first: dict[int, tuple[float, float]] = {}
        for at, step, _, _, samples in self.trace([self.faults[index]["worker"]]):
            first.setdefault(int(step), (at, samples))
        last = max(
            (s for s, (at, _) in first.items() if at_seconds and at <= at_seconds), default=0
        )
        half = min((step for step in first if step >= last + num_after // 2), default=0)
        end = min((step for step in first if step >= last + num_after), default=0)
        if not last or not end:
            raise ValueError(f"no {num_after} steps after fault {index}:\n{self.console}")
        (began_at, began), (over_at, over), (ended_at, ended) = first[last], first[half], first[end]
        pace = (ended - over) / (ended_at - over_at)
        lost_samples = pace * (over_at - began_at) - (over - began)
        return lost_samples / float(self.script.get("batch_size", DEFAULT_BATCH_SIZE))

    def computed_again(self) -> float:
        """What was computed in vain, by who was lost too: batches beyond those of the epochs."""
        script = {"num_samples": 512, "epochs": 5, "batch_size": DEFAULT_BATCH_SIZE, **self.script}
        computed = sum(line[2] for line in self.trace())
        return float((computed - script["num_samples"] * script["epochs"]) / script["batch_size"])

    def longest_gap_seconds(self) -> float:
        """The longest time between two applied steps."""
        times = [line[0] for line in self.trace()]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def results(self) -> list[dict[str, Any]]:
        """What each worker that finished has proved."""
        return [json.loads(file.read_text()) for file in self.folder.glob("result-*.json")]

    def summary(self) -> dict[str, Any]:
        """The driver's summary."""
        found: dict[str, Any] = json.loads((self.folder / "out" / "summary.json").read_text())
        return found


def pids_in(folder: Path) -> dict[str, int]:
    """Process id of each worker that has applied a step, the newest of each."""
    files = sorted(folder.glob("trace-*.jsonl"), key=lambda file: file.stat().st_ctime)
    names = [file.name.removeprefix("trace-").split(".") for file in files]
    return {worker: int(pid) for worker, pid, *_ in names}


def trace_in(folder: Path, but: Sequence[str] = ()) -> list[list[float]]:
    """Of each part: time (monotonic seconds), steps applied, its samples, workers, samples applied.

    Args:
        folder: Of a job of `fault_script.py`, however it was started.
        but: Workers whose lines are left out.
    """
    lines = []
    for file in folder.glob("trace-*.jsonl"):
        if not file.name.startswith(tuple(f"trace-{worker.replace(':', '-')}." for worker in but)):
            text = file.read_text()
            lines += [json.loads(line) for line in text.splitlines() if line.endswith("]")]
    return sorted(lines)


def gap_seconds(folder: Path, *, before: int, after: int) -> float:
    """From the last step of so many workers to the first of so many others.

    Raises:
        ValueError: There are no such steps.
    """
    lines = trace_in(folder)
    first = min(
        (at for at, _, _, num_workers, *_ in lines if num_workers == after), default=-math.inf
    )
    earlier = [at for at, _, _, num_workers, *_ in lines if num_workers == before and at < first]
    if not earlier:
        raise ValueError(f"{folder}: no step of {after} workers after one of {before}")
    return first - max(earlier)


def in_words(seconds: Sequence[float]) -> str:
    """Median and range of several measurements."""
    return (
        f"median {statistics.median(seconds):.2f} s of {len(seconds)} "
        f"({min(seconds):.2f} to {max(seconds):.2f})"
    )
