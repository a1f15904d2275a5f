"""What a real driver does for 16, 64 and 256 workers that compute nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.numbers import Number
from benchmarks.tables import FULL, Effort, Say, Table
from hetero_hvd.errors import JobError
from tests.kit.scale.crowded_job import CrowdedRun, CrowdError, crowded_job
from tests.kit.scale.fake_training import Fault, Script

SIZES = (16, 64, 256)
STEP_SECONDS, NUM_STEPS, FAULT_STEP = 0.1, 160, 120
SETTLING_SECONDS = 3.0
"""After the workers have met: then an exchange comes after each step."""

TIMEOUT_SECONDS = 1200.0
MAX_STALL_SECONDS, MAX_CORE_RATIO = 1.0, 0.5
COLUMNS = (
    "workers",
    "start",
    "a step, per worker",
    "part of a core",
    "longest stall, start",
    "longest stall, settled",
    "a worker is lost",
    "a worker joins",
    "memory",
    "record of a step",
    "descriptors",
    "threads",
)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the driver did in one run; processor time, where nothing else is said.

    Attributes:
        start_seconds: From its start until all workers have met.
        core_ratio: Per second, once they are settled.
        start_stall_seconds: Longest time in which its loop did one thing, until they have met.
        stall_seconds: The same, settled.
        lost_seconds: From the loss of a worker until the others have met.
        join_seconds: From its return until all have met.
        memory_bytes: The most.
        record_bytes: Of the record, per step, settled.
        num_fds: The most.
        num_threads: The most.
    """

    start_seconds: float
    core_ratio: float
    start_stall_seconds: float
    stall_seconds: float
    lost_seconds: float
    join_seconds: float
    memory_bytes: float
    record_bytes: float
    num_fds: int
    num_threads: int


def scale(effort: Effort, say: Say) -> Iterator[Table]:
    """The driver alone is real."""
    sizes = SIZES if effort.num_steps >= FULL.num_steps else SIZES[:-1]
    found: dict[int, list[Load]] = {size: [] for size in sizes}
    for repeat in range(min(effort.repeats, 3)):
        for size in sizes:
            load = _load(size)
            say(f"{size} workers, turn {repeat + 1}: {load.core_ratio:.2f} of a core")
            found[size].append(load)
    yield _table(found)


def _load(size: int) -> Load:
    script = Script(
        num_steps=NUM_STEPS,
        step_seconds=STEP_SECONDS,
        faults=(Fault(at_step=FAULT_STEP, rank=size // 2, kind="lost"),),
    )
    try:
        run = crowded_job(size, script, timeout_seconds=TIMEOUT_SECONDS)
    except CrowdError as error:
        raise JobError(f"{size} workers: {error}") from error
    if run.exit_code or len(run.times_of("met")) != 3:  # noqa: PLR2004 - start, loss, join
        raise JobError(f"{size} workers: {run.output[-1000:]}")
    return _judged(run)


def _judged(run: CrowdedRun) -> Load:
    (met, met_fewer, met_again), broken = run.times_of("met"), run.times_of("broken")
    since, until = met + SETTLING_SECONDS, broken[0]
    settled = [look for look in run.looks if since <= look["at_seconds"] <= until]
    grown = settled[-1]["record_bytes"] - settled[0]["record_bytes"]
    seconds = settled[-1]["at_seconds"] - settled[0]["at_seconds"]
    return Load(
        start_seconds=run.used_seconds(0.0, met),
        core_ratio=run.used_seconds(since, until) / (until - since),
        start_stall_seconds=run.longest_stall(0.0, met)[0],
        stall_seconds=run.longest_stall(since, until)[0],
        lost_seconds=run.used_seconds(broken[0], met_fewer),
        join_seconds=run.used_seconds(broken[1], met_again),
        memory_bytes=max(look["memory_bytes"] for look in run.looks),
        record_bytes=grown / seconds * STEP_SECONDS,
        num_fds=max(look["num_fds"] for look in run.looks),
        num_threads=max(look["num_threads"] for look in run.looks),
    )


def _table(found: dict[int, list[Load]]) -> Table:
    table = Table(
        title="The driver of many workers",
        text="A real driver, and workers that compute nothing, one on each node, in one process: "
        "TLS channels, heartbeats, samples, exchanges, plans and Horovod's rendezvous as workers "
        f"have them, steps of {STEP_SECONDS * 1e3:.0f} ms. One is lost and comes back. Processor "
        "time of the driver, medians; nobody asks for the page and the metrics.",
        columns=COLUMNS,
    )
    for size, loads in found.items():
        table.rows.append(_row(size, loads))
        table.measured[f"{size} workers, part of a core"] = [load.core_ratio for load in loads]
        table.measured[f"{size} workers, longest stall"] = [load.stall_seconds for load in loads]
        table.measured[f"{size} workers, start"] = [load.start_seconds for load in loads]
    largest = max(found)
    stall = median(load.stall_seconds for load in found[largest])
    ratio = median(load.core_ratio for load in found[largest])
    table.numbers.append(
        Number(
            quantity=f"driver of {largest} workers, settled",
            goal=f"<= {MAX_CORE_RATIO:.0%} of a core, no stall of {MAX_STALL_SECONDS:g} s",
            found=f"{ratio:.0%}, longest stall {stall * 1e3:.0f} ms",
            is_reached=ratio <= MAX_CORE_RATIO and stall < MAX_STALL_SECONDS,
        )
    )
    return table


def _row(size: int, loads: list[Load]) -> list[str]:
    def of(name: str) -> float:
        return float(median(getattr(load, name) for load in loads))

    return [
        str(size),
        f"{of('start_seconds'):.1f} s",
        f"{of('core_ratio') * STEP_SECONDS / size * 1e6:.0f} us",
        f"{of('core_ratio'):.1%}",
        f"{of('start_stall_seconds') * 1e3:.0f} ms",
        f"{of('stall_seconds') * 1e3:.0f} ms",
        f"{of('lost_seconds'):.1f} s",
        f"{of('join_seconds'):.1f} s",
        f"{of('memory_bytes') / 2**20:.0f} MiB",
        f"{of('record_bytes') / 1e3:.1f} kB",
        f"{of('num_fds'):.0f}",
        f"{of('num_threads'):.0f}",
    ]
