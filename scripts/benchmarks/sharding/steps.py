"""What a step with the optimizer's state in parts costs, where the whole state fits too."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import msgspec

from benchmarks.numbers import Number
from benchmarks.sharding.control_groups import WorkerGroups, worker_groups
from benchmarks.sharding.jobs import DeepJob
from benchmarks.sharding.largest import KINDS, RATIO, WIDTH
from benchmarks.sharding.trainings import step_seconds, trained
from benchmarks.tables import Effort, Say, Table, median_of

NUM_STEPS, DEPTH = 24, 48
BATCHES = {"float32": (6, 384, 1536), "bfloat16": (6, 96)}
"""Samples in a step of all workers: with few of them most of a step is reduction, with many most of
it is computing. Most CPUs have no instructions of their own for bfloat16: no more of it."""

MOST_TIME, MOST_BYTES = 1.10, 1.55
"""In parts / without: the goals."""


def sharding_steps(effort: Effort, say: Say) -> Iterator[Table]:
    """State in parts: step time and bytes on the wire, where the whole state fits too."""
    table = Table(
        title="Steps with the optimizer's state in parts",
        text=f"Three workers without limits, {DEPTH} layers of {WIDTH} x {WIDTH}: medians of the "
        f"second half of {NUM_STEPS} steps, in turns. Bytes are those given to Horovod, as a ring "
        "sends them.",
        columns=(
            "numbers",
            "samples of each worker in a step",
            "seconds without parts",
            "step time, in parts / without",
            "bytes, in parts / without",
        ),
    )
    with worker_groups(len(RATIO)) as groups:
        for kind in KINDS:
            for batch in BATCHES[kind.dtype]:
                job = DeepJob(
                    width=WIDTH, depth=DEPTH, num_steps=NUM_STEPS, dtype=kind.dtype, batch=batch
                )
                each = f"{batch // len(RATIO)}"
                whole, times, sent = _compared(groups, job, effort, say)
                what = f"{kind.title}, {each} samples each"
                table.measured[what] = times
                table.rows.append(
                    (
                        kind.title,
                        each,
                        f"{median(whole):.3f}",
                        median_of(times),
                        f"{median(sent):.2f}",
                    )
                )
                table.numbers += _numbers(what, times, sent)
    yield table


def _numbers(what: str, times: list[float], sent: list[float]) -> list[Number]:
    return [
        Number(
            quantity=f"step time in parts / without: {what}",
            goal=f"<= {MOST_TIME:.2f}",
            found=median_of(times),
            is_reached=median(times) <= MOST_TIME,
        ),
        Number(
            quantity=f"bytes on the wire in parts / without: {what}",
            goal=f"<= {MOST_BYTES:g}",
            found=f"{median(sent):.2f}",
            is_reached=median(sent) <= MOST_BYTES,
        ),
    ]


def _compared(
    groups: WorkerGroups, job: DeepJob, effort: Effort, say: Say
) -> tuple[list[float], list[float], list[float]]:
    """Of each turn: seconds of a step without parts, and ratios of step time and bytes sent."""
    whole, times, sent = [], [], []
    for turn in range(effort.repeats):
        seconds: dict[bool, float] = {}
        num_bytes: dict[bool, float] = {}
        for shards in (False, True) if turn % 2 == 0 else (True, False):
            results = trained(groups, msgspec.structs.replace(job, shards=shards))
            seconds[shards] = step_seconds(results[0])
            num_bytes[shards] = sum(each.sent_bytes for each in results)
            say(f"{job.dtype}, batch {job.batch}, parts {shards}: {seconds[shards]:.3f} s a step")
        whole.append(seconds[False])
        times.append(seconds[True] / seconds[False])
        sent.append(num_bytes[True] / num_bytes[False])
    return whole, times, sent
