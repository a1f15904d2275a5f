"""What sets of nodes would do that were not measured, as intervals, from those that were."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from hetero_hvd.core.advice.advice import Goal
from hetero_hvd.core.advice.placements import MeasuredJob, sets_of
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.cost.placement import ShareTime, flattest_line, line_through

MODEL_RATIO = 0.12
"""A prediction may be off by so much, beside the noise of what it is made of."""

WIDTH = 1.6449
"""An interval of so many standard errors to both sides holds 90 % of a normal distribution."""

MAX_NODES = 6
"""See `sets_of`: the driver has other things to do."""

Nodes = frozenset[str]


def predicted_speeds(
    run: MeasuredJob, goal: Goal, exposed_seconds: Mapping[Nodes, float]
) -> Iterator[tuple[Nodes, float, float]]:
    """Sets of nodes that lack one at least, with samples per second at least and at most.

    Fewer workers wait for a reduction no longer than more of them do, and one alone not at all: so
    what was measured of larger and of smaller sets are the ends of the interval.

    Args:
        run: What was measured of all workers.
        goal: By which some are chosen, where there are many nodes.
        exposed_seconds: Set of nodes to the reduction that nobody could hide, per step; that of all
            of them is there.

    Yields:
        `(nodes, 0, 0)` if they cannot hold the global batch.
    """
    joined, times = run.joined, run.times
    models = {worker: line_through(_typical(rows)) for worker, rows in times.items()}
    flat = {worker: _flattest(times[worker], model) for worker, model in models.items()}
    noise = max(_errors(rows, models[w]) / math.sqrt(len(rows)) for w, rows in times.items())
    off = MODEL_RATIO + WIDTH * noise
    for nodes in map(frozenset, sets_of(run, goal, models, MAX_NODES)):
        speed = run.figures(sorted(nodes), models, 0.0)["speed"]
        if speed <= 0:
            yield nodes, 0.0, 0.0
            continue
        num_workers = sum(worker.node in nodes for worker in joined.workers)
        least, most = _between(nodes, exposed_seconds) if num_workers > 1 else (0.0, 0.0)
        slowest = run.figures(sorted(nodes), models, most)["speed"]
        fastest = run.figures(sorted(nodes), flat, least)["speed"]
        yield nodes, slowest * (1 - off), fastest * (1 + off)


def _between(nodes: Nodes, exposed_seconds: Mapping[Nodes, float]) -> tuple[float, float]:
    most = min(value for other, value in exposed_seconds.items() if other > nodes)
    least = max((value for other, value in exposed_seconds.items() if other < nodes), default=0.0)
    return min(least, most), most


def _flattest(rows: Sequence[ShareTime], line: StepTimeModel) -> StepTimeModel:
    """The line that rises least with the share, of those that what was measured allows.

    Where its shares were alike, all of a step's time may be an overhead; else the slope is known to
    so many standard errors of a regression, in which each share counts once: what a device is off
    its line by at one share does not vanish when that is measured more often.
    """
    mean = fmean(row.share for row in rows)
    spread = math.fsum((share - mean) ** 2 for share in {row.share for row in rows})
    if not spread:
        return flattest_line(rows)
    seconds = line.overhead_seconds + line.seconds_per_sample * mean
    error = _errors(rows, line) * seconds / math.sqrt(spread)
    slope = max(line.seconds_per_sample - WIDTH * error, 1e-3 * line.seconds_per_sample)
    return StepTimeModel(
        overhead_seconds=max(0.0, seconds - slope * mean), seconds_per_sample=slope
    )


def _typical(rows: Sequence[ShareTime]) -> list[ShareTime]:
    """A row for each share, with the median of its times: a loaded round is not the worker's."""
    by_share: dict[float, list[ShareTime]] = {}
    for row in rows:
        by_share.setdefault(row.share, []).append(row)
    return [
        ShareTime(
            share=share,
            busy_seconds=median(row.busy_seconds for row in same),
            num_steps=math.fsum(row.num_steps for row in same),
        )
        for share, same in by_share.items()
    ]


def _errors(rows: Sequence[ShareTime], line: StepTimeModel) -> float:
    """Standard deviation of a worker's times from its line, as a part of them."""
    off = [
        row.busy_seconds / (line.overhead_seconds + line.seconds_per_sample * row.share) - 1.0
        for row in rows
    ]
    return math.sqrt(fmean(value**2 for value in off))
