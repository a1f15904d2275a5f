"""Every break of a worker in every mode, many times: `scripts/chaos --matrix`.

The victim is slower than the others, so that these wait for it when it is lost: with late gradients
in the reduction of an earlier step. When exactly it is lost is drawn from a seed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.kit.fault_job import FaultJob
from tests.kit.virtual_cluster import (
    INTERFACE,
    VirtualHost,
    missing_for_a_cluster,
    running_cluster,
)

LATE = {"staleness_warmup_steps": 0}
MODES: dict[str, dict[str, Any]] = {
    "bound 0": {},
    "bound 1": {"staleness_bound": 1, **LATE},
    "bound 4": {"staleness_bound": 4, **LATE},
    "wait-free": {"wait_free": True, "micro_batch_size": 16},
    "reproducible": {},
}
"""Name to arguments of the trainer."""

SETTINGS: dict[str, dict[str, object]] = {"reproducible": {"reproducible": True, "grain": 16}}
"""Name to settings of the job, where there are any."""

BREAKS = ("kill", "SIGSTOP", "link down")
SURVIVORS, VICTIM, VICTIM_RATIO = ("alpha", "gamma"), "beta", 3.0
EPOCHS, SAMPLES, BATCH, STEP_SECONDS = 10, 512, 64, 0.02
FIRST_STEP, LAST_STEP, SPREAD_SECONDS = 8, 24, 0.2
"""The victim is lost so long after one of these steps."""

START_SECONDS, RUN_SECONDS, END_SECONDS = 120.0, 120.0, 10.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run.

    Attributes:
        cell: Break and mode.
        seed: That decided when.
        survived: Whether the others finished the training.
        exact: Whether each sample was used once in each epoch, on equal replicas.
        seconds: From the break to the next step that the others applied; None: there was none.
        console: What the driver showed, if anything of this is wrong.
    """

    cell: str
    seed: int
    survived: bool
    exact: bool
    seconds: float | None
    console: str = ""


def run_once(
    folder: Path, kind: str, mode: str, seed: int, host: VirtualHost | None = None
) -> Outcome:
    """One job that loses one of its three workers.

    Args:
        folder: Empty.
        kind: Of `BREAKS`.
        mode: Of `MODES`.
        seed: Decides when.
        host: Where the victim runs; None: on this machine.

    Raises:
        TimeoutError: The job did not come as far as the break.
    """
    rng = random.Random(f"{kind} {mode} {seed}")  # noqa: S311 - to be repeated, not to be secret
    nodes: list[str | Mapping[str, object]] = [*SURVIVORS]
    nodes.append(_node(host, folder) if host else VICTIM)
    job = FaultJob(
        folder,
        nodes,
        settings={"max_restarts": 0, "balance": False, **SETTINGS.get(mode, {})},
        epochs=EPOCHS,
        num_samples=SAMPLES,
        batch_size=BATCH,
        ballast=1,
        step_seconds=STEP_SECONDS,
        slow={f"{VICTIM}:0": VICTIM_RATIO},
        options=MODES[mode],
    )
    try:
        _await_victim(job, rng.randint(FIRST_STEP, LAST_STEP))
        time.sleep(rng.uniform(0.0, SPREAD_SECONDS))
        pid, broken_at = job.pids()[f"{VICTIM}-0"], time.monotonic()
        with _broken(kind, pid, host):
            code = job.wait(RUN_SECONDS)
    finally:
        job.close()
    results = job.results()
    survived = code == 0 and {r["worker"] for r in results} == {f"{n}:0" for n in SURVIVORS}
    exact = len({r["state"] for r in results}) == 1
    exact &= all(r["times_used"] == [EPOCHS, EPOCHS] for r in results)
    is_good = survived and exact
    return Outcome(
        cell=f"{kind}, {mode}",
        seed=seed,
        survived=survived,
        exact=exact,
        seconds=_seconds_to_next_step(job, broken_at),
        console="" if is_good else job.console[-4000:],
    )


def _node(host: VirtualHost, folder: Path) -> Mapping[str, object]:
    """The victim's entry; it computes with one thread, as the others do."""
    environment = {"OMP_NUM_THREADS": "1"}
    return host.node(slots=1, devices=[], directory=str(folder), env=environment)


def _await_victim(job: FaultJob, step: int) -> None:
    """Wait until the victim has applied so many steps together with the others."""
    deadline = time.monotonic() + START_SECONDS
    everybody = len(SURVIVORS) + 1
    others = tuple(f"{name}:0" for name in SURVIVORS)
    while not any(line[1] >= step and line[3] == everybody for line in job.trace(others)):
        if time.monotonic() > deadline or job.process.poll() is not None:
            raise TimeoutError(f"the victim does not reach step {step}:\n{job.console}")
        time.sleep(0.01)


@contextlib.contextmanager
def _broken(kind: str, pid: int, host: VirtualHost | None) -> Iterator[None]:
    """Break the victim; nothing of it is left afterwards."""
    try:
        if kind == "kill":
            os.kill(pid, signal.SIGKILL)
        elif kind == "SIGSTOP":
            os.kill(pid, signal.SIGSTOP)
        elif host is not None:
            host.run(["ip", "link", "set", INTERFACE, "down"])
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if host is not None:
            host.run(["ip", "link", "set", INTERFACE, "up"])
            gateway = f"{host.address.rpartition('.')[0]}.1"  # the route went with the interface
            host.run(["ip", "route", "replace", "default", "via", gateway])


def _seconds_to_next_step(job: FaultJob, broken_at: float) -> float | None:
    lines = job.trace((f"{VICTIM}:0",))
    known = max((step for at, step, *_ in lines if at < broken_at), default=0)
    after = [
        at
        for at, step, _, num_workers, _ in lines
        if at > broken_at and step > known and num_workers == len(SURVIVORS)
    ]
    return min(after) - broken_at if after else None


class Matrix:
    """The runs so far, in a file that is complete after each of them.

    Args:
        file: Where; runs that are in it are not done again.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        known = json.loads(file.read_text()) if file.exists() else []
        self.outcomes = [Outcome(**fields) for fields in known]

    def has(self, cell: str, seed: int) -> bool:
        """Whether this run is done."""
        return any((known.cell, known.seed) == (cell, seed) for known in self.outcomes)

    def add(self, outcome: Outcome) -> None:
        """Keep one more."""
        self.outcomes.append(outcome)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps([asdict(each) for each in self.outcomes], indent=1) + "\n")
        fresh.replace(self._file)

    def table(self) -> str:
        """In Markdown, a row for each cell."""
        rows = [
            "| the worker | runs | survived | exactly once | median, s | longest, s |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for cell in dict.fromkeys(each.cell for each in sorted(self.outcomes, key=_in_order)):
            runs = [each for each in self.outcomes if each.cell == cell]
            seconds = [each.seconds for each in runs if each.seconds is not None]
            median = f"{statistics.median(seconds):.2f}" if seconds else "-"
            longest = f"{max(seconds):.2f}" if seconds else "-"
            survived, exact = (sum(r.survived for r in runs), sum(r.exact for r in runs))
            rows.append(f"| {cell} | {len(runs)} | {survived} | {exact} | {median} | {longest} |")
        return "\n".join(rows)

    @property
    def is_clean(self) -> bool:
        """Whether every job survived, and exactly."""
        return all(each.survived and each.exact for each in self.outcomes)


def _in_order(outcome: Outcome) -> tuple[int, int]:
    kind, _, mode = outcome.cell.partition(", ")
    return BREAKS.index(kind), list(MODES).index(mode)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `--matrix`."""
    group = parser.add_argument_group("matrix")
    group.add_argument("--matrix", action="store_true", help="every break in every mode instead")
    group.add_argument("--repeat", type=int, default=20, help="runs of each cell")
    group.add_argument(
        "--results", type=Path, default=Path("matrix.json"), help="file to go on with"
    )
    group.add_argument("--breaks", nargs="*", default=[*BREAKS], choices=BREAKS, metavar="BREAK")
    group.add_argument("--modes", nargs="*", default=[*MODES], choices=MODES, metavar="MODE")


def run(options: argparse.Namespace) -> int:
    """Do what is missing in the file, print the table; exit code 1 if any run went wrong."""
    matrix = Matrix(options.results)
    with contextlib.ExitStack() as stack:
        host = None
        if "link down" in options.breaks:
            if missing := missing_for_a_cluster():
                sys.stderr.write(f"link down: {missing}\n")
                return 2
            keys = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            host = stack.enter_context(running_cluster({VICTIM: 100}, folder=keys))[VICTIM]
        for seed in range(options.seed, options.seed + options.repeat):
            for kind in options.breaks:
                for mode in options.modes:
                    if not matrix.has(f"{kind}, {mode}", seed):
                        matrix.add(_tried(kind, mode, seed, host if kind == "link down" else None))
                        _tell(matrix.outcomes[-1])
    sys.stdout.write(f"{matrix.table()}\n")
    return 0 if matrix.is_clean else 1


def _tried(kind: str, mode: str, seed: int, host: VirtualHost | None) -> Outcome:
    """A run that does not come to its end has not survived."""
    with tempfile.TemporaryDirectory(prefix="hetero-hvd-matrix-") as folder:
        try:
            return run_once(Path(folder), kind, mode, seed, host)
        except (TimeoutError, OSError) as error:
            cell, told = f"{kind}, {mode}", str(error)[-4000:]
            return Outcome(
                cell=cell, seed=seed, survived=False, exact=False, seconds=None, console=told
            )


def _tell(outcome: Outcome) -> None:
    words = "survived, exact" if outcome.survived and outcome.exact else "WRONG"
    took = "-" if outcome.seconds is None else f"{outcome.seconds:.2f} s"
    sys.stdout.write(f"{outcome.cell}, seed {outcome.seed}: {words}, {took}\n")
    sys.stdout.flush()
