"""Layers cut over two unequal processes, beside ours."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from benchmarks.sharding.control_groups import WorkerGroups, worker_groups
from benchmarks.sharding.jobs import DeepJob
from benchmarks.sharding.trainings import step_seconds, trained
from benchmarks.tables import Effort, Say, Table, median_of

SPEEDS = (70, 35)
"""Percent of one core that each of two workers has: together they leave the system enough."""

PIPELINE = DeepJob(width=512, depth=12, num_steps=24, batch=240, balances=True)
NUM_PIECES = 8


def pipelining(effort: Effort, say: Say) -> Iterator[Table]:
    """Layers cut over two unequal processes by torch.distributed.pipelining, beside ours."""
    with worker_groups(len(SPEEDS)) as groups:
        yield _compared(groups, effort, say)


def _compared(groups: WorkerGroups, effort: Effort, say: Say) -> Table:
    depth, fastest = PIPELINE.depth, SPEEDS[0] / sum(SPEEDS)
    ways: dict[str, DeepJob] = {"ours": PIPELINE, "ours, state in parts": _with(shards=True)}
    cuts = {"by speed": round(depth * fastest), "in halves": depth // 2}
    for schedule, words in (("1F1B", "by speed"), ("GPipe", "by speed"), ("1F1B", "in halves")):
        ways[f"{schedule}, layers cut {words}"] = _with(
            schedule=schedule, cut=cuts[words], num_micro_batches=NUM_PIECES
        )
    groups.limit_speed(SPEEDS)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(effort.repeats):
        for name, job in ways.items():
            result = trained(groups, job)[0]
            speeds[name].append(job.batch / step_seconds(result))
            say(f"{name}, turn {turn + 1}: {speeds[name][-1]:.0f} samples/s")
    table = Table(
        title="Layers cut over two unequal processes, beside ours",
        text=f"{depth} layers of {PIPELINE.width} x {PIPELINE.width}, batches of {PIPELINE.batch}, "
        f"AdamW, one thread each; control groups give the two {SPEEDS[0]} % and {SPEEDS[1]} % of a "
        "core. The pipelines are those of torch.distributed.pipelining over Gloo, in "
        f"{NUM_PIECES} micro-batches; cut by speed is the best that one could do who knew it "
        "beforehand. Ours finds the shares by itself. Samples per second, of "
        "the second half of each run.",
        columns=("way", "samples per second", "ours / it"),
    )
    for name, found in speeds.items():
        ratios = [ours / other for ours, other in zip(speeds["ours"], found, strict=True)]
        table.measured[name] = found
        table.rows.append((name, median_of(found, "{:.0f}"), median_of(ratios)))
    return table


def _with(**changes: object) -> DeepJob:
    return msgspec.structs.replace(PIPELINE, **changes)
