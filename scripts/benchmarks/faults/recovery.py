"""Where the time of a recovery goes: a part of `scripts/bench`.

One of n workers on one machine is killed. What the others need until they have applied the step
again is split at instants that the driver (`MembersMet`, `WorkerExited`) and the survivors
(`Recovered`) record. The workers have few cores together, so a part that all have to do takes at
least their processor time by the number of cores; that stands beside it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from benchmarks.faults.__main__ import run_job
from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from hetero_hvd.messages import MembersMet, Recovered, WorkerExited
from hetero_hvd.run.event_bus import steady_time
from hetero_hvd.run.records.reader import read_record
from tests.kit.fault_job import NODE_NAMES, FaultJob, in_words

SMALL, LARGE, HUGE = 10_000, 10_000_000, 100_000_000
ROWS: tuple[tuple[int, int, float | None], ...] = (
    (4, SMALL, 0.08),
    (8, SMALL, 0.17),
    (16, SMALL, 0.3),
    (4, LARGE, None),
    (4, HUGE, None),
)
"""Workers, parameters, and the goal for the median in seconds."""

FAULT_STEP, LAST_EPOCH = 10, 3
DRIVER = "driver"


@dataclass
class Split:
    """One recovery.

    Attributes:
        seconds: From the kill to the next applied step of the others.
        parts: Name to duration: the longest of the survivors, or the driver's.
        processor_seconds: Name to the processor time of all survivors together in it.
        num_requests: That the driver's rendezvous server was asked.
        workers: Name of each survivor to its own parts.
    """

    seconds: float
    parts: dict[str, float]
    processor_seconds: dict[str, float]
    num_requests: int
    workers: dict[str, dict[str, float]] = field(default_factory=dict)


def measure(folder: Path, num_workers: int, parameters: int) -> Split:
    """Kill one of so many workers, and read from the record where the time has gone."""
    fault = {"worker": f"{NODE_NAMES[1]}:0", "step": FAULT_STEP, "kind": "kill"}
    unix_seconds = steady_time()() - time.monotonic()
    job = run_job(folder, num_workers, [fault], LAST_EPOCH, ballast=parameters)
    return split(job, unix_seconds)


def split(job: FaultJob, unix_seconds: float) -> Split:
    """What the record of a job says of its first fault, the loss of a worker.

    Args:
        job: It has ended.
        unix_seconds: The time of day at 0 of the monotonic clock.
    """
    killed_at = (job.fired()[0] or 0.0) + unix_seconds
    events = read_record(job.folder / "out").events
    after = [(at, event) for at, event in events if at >= killed_at]
    noticed_at = next(at for at, event in after if isinstance(event, WorkerExited))
    met_at, met = next((at, event) for at, event in after if isinstance(event, MembersMet))
    ends = {
        at: event
        for at, event in after
        if isinstance(event, Recovered) and event.rendezvous_id == met.rendezvous_id
    }
    recovered_at, told = max(ends), list(ends.values())
    asked_at = met_at - met.return_seconds - met.address_seconds - met.rest_seconds
    noticed_at = min(noticed_at, asked_at)  # the process may end after all know of it
    seconds = job.recovery_seconds()
    parts = {
        "until the driver knows": noticed_at - killed_at,
        "until the first one asks for a rank": asked_at - noticed_at,
        "until all have asked": met.return_seconds,
        "addresses": met.address_seconds,
        "connections, checksums and votes, until the driver hears of it": met.rest_seconds,
        "plan": recovered_at - met_at,
        "first step": killed_at + seconds - recovered_at,
    }
    processor: dict[str, list[float]] = defaultdict(list)
    for event in told:
        for name, (_, of_part) in event.parts.items():
            processor[name].append(of_part)
    return Split(
        seconds,
        parts,
        {name: sum(found) for name, found in processor.items()} | {DRIVER: met.processor_seconds},
        met.num_requests,
        {
            str(event.worker): {name: of_part for name, (of_part, _) in event.parts.items()}
            for event in told
        },
    )


def recovery(effort: Effort, say: Say) -> Iterator[Table]:
    """Where the time of a recovery goes: 4 to 16 workers, up to 100 million parameters."""
    for num_workers, parameters, goal_seconds in ROWS:
        found = []
        what = f"kill -9 of one of {num_workers}, {parameters:,} parameters"
        for repeat in range(effort.repeats):
            with tempfile.TemporaryDirectory(prefix="hetero-hvd-recovery-") as folder:
                found.append(measure(Path(folder), num_workers, parameters))
            say(f"{what}, {repeat + 1} of {effort.repeats}: {found[-1].seconds:.3f} s")
        yield table_of(what, found, goal_seconds)


def table_of(what: str, found: list[Split], goal_seconds: float | None) -> Table:
    """Medians of the parts of several recoveries."""
    table = Table(
        title=f"Recovery: {what}",
        text="Parts of a recovery, one after the other, by the driver's clock; then those of each "
        "survivor by its own, mean and the longest, and the processor time of all survivors and of "
        "the driver. "
        "One machine, Gloo on the loopback interface, steps of 20 ms; medians of "
        f"{len(found)}.",
        columns=("part", "ms", "longest of a worker, ms", "processor time, all, ms"),
    )
    seconds = [one.seconds for one in found]
    table.rows.append((f"in all: {in_words(seconds)}", _ms(median(seconds)), "", ""))
    if goal_seconds is not None:
        table.numbers.append(
            Number(
                quantity=f"recovery: {what}",
                goal=f"median <= {goal_seconds:g} s",
                found=in_words(seconds),
                is_reached=median(seconds) <= goal_seconds,
            )
        )
    for name in found[0].parts:
        table.rows.append((name, _ms(median(one.parts[name] for one in found)), "", ""))
    for name in next(iter(found[0].workers.values())):
        each = [[parts.get(name, 0.0) for parts in one.workers.values()] for one in found]
        table.rows.append(
            (
                f"a worker: {name}",
                _ms(median(map(mean, each))),
                _ms(median(map(max, each))),
                _ms(median(one.processor_seconds.get(name, 0.0) for one in found)),
            )
        )
    driver = median(one.processor_seconds[DRIVER] for one in found)
    requests = f"the driver: {median(one.num_requests for one in found):.0f} requests"
    table.rows.append((requests, "", "", _ms(driver)))
    return table


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def main() -> int:
    """Print the tables of some numbers of workers, and each survivor's parts of the last run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--parameters", type=int, default=SMALL)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--each", action="store_true", help="print each survivor's parts too")
    arguments = parser.parse_args()
    for num_workers in arguments.workers:
        found = []
        for _ in range(arguments.repeat):
            with tempfile.TemporaryDirectory(prefix="hetero-hvd-recovery-") as folder:
                found.append(measure(Path(folder), num_workers, arguments.parameters))
        what = f"kill -9 of one of {num_workers}, {arguments.parameters:,} parameters"
        for row in table_of(what, found, None).rows:
            sys.stdout.write(f"{row[0]:66}" + "".join(f"{cell:>12}" for cell in row[1:]) + "\n")
        for worker, parts in found[-1].workers.items() if arguments.each else ():
            words = ", ".join(f"{name} {_ms(seconds)}" for name, seconds in parts.items())
            sys.stdout.write(f"{worker}: {words} ms\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
