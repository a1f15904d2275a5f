"""Divide the global batch so that all workers reach the reduction together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.errors import InfeasiblePlanError
from hetero_hvd.messages import WorkerId

Counts = NDArray[np.float64]
"""Grains per worker; whole numbers, as floats because they meet seconds in every formula."""


UNLIMITED = 1e300
"""Samples in a piece where their number is not limited; not infinite, as 0 times that is NaN."""


def balance(
    models: Mapping[WorkerId, StepTimeModel],
    *,
    global_batch_size: int,
    capacities: Sequence[int] | None = None,
    at_least: Sequence[int] | None = None,
    grain: int = 1,
) -> tuple[int, ...]:
    """Minimise the time of the slowest worker over all integer divisions of the batch.

    The result is that of giving each grain to the worker that would finish it soonest; step times
    never fall as the batch grows, so no grain could have finished sooner elsewhere. It is found
    without walking the grains: the number of grains that all workers finish by T grows with T, so
    bisection finds the earliest T at which the batch is done, down to the last bit. A worker whose
    first grain would end after T gets nothing, because no work costs no overhead.

    Deterministic, and the same for any order of `models`: grains that end at the same instant go
    to the smaller `WorkerId`. 10,000 workers and a million samples take a few milliseconds.

    Args:
        models: Step-time model per worker, in rank order.
        global_batch_size: Samples per optimizer step, > 0.
        capacities: Largest local batch in the same order, samples; -1 = not limited.
        at_least: Smallest local batch in the same order, samples, a multiple of `grain`.
        grain: Samples that are never split between workers, >= 1. Where it does not divide the
            batch, the last worker with work has one short grain.

    Returns:
        Local batch sizes in the same order, samples per step; they sum to `global_batch_size`.

    Raises:
        InfeasiblePlanError: The workers together hold fewer samples.
    """
    workers = tuple(models)
    num_grains = -(-global_batch_size // grain)
    curves = _Curves(list(models.values()), grain)
    low = np.asarray(at_least if at_least is not None else np.zeros(len(workers))) // grain
    high = np.full(len(workers), float(num_grains))
    if capacities is not None:
        limits = np.asarray(capacities, dtype=np.float64)
        high = np.where(limits < 0, high, np.minimum(limits // grain, high))
    low = np.minimum(low, high)
    if high.sum() < num_grains:
        raise InfeasiblePlanError(
            global_batch_size=global_batch_size,
            capacity=int(high.sum()) * grain,
            nodes=tuple(dict.fromkeys(worker.node for worker in workers)),
        )

    def done_by(seconds: float) -> Counts:
        counts = np.clip(curves.inverse(seconds), -1.0, high)
        # Division and multiplication round differently; the product is what a caller compares.
        counts += curves.seconds(counts + 1) <= seconds
        counts -= curves.seconds(counts) > seconds
        kept: Counts = np.clip(counts, low, high)
        return kept

    late = float(curves.seconds(high).max())
    counts = _earliest(done_by, num_grains, late=late, ids=workers)
    sizes = [int(count) * grain for count in counts]
    surplus = num_grains * grain - global_batch_size
    if surplus:
        last = max(rank for rank, size in enumerate(sizes) if size)
        sizes[last] -= surplus
    return tuple(sizes)


class _Curves:
    """Seconds of grains, and grains by seconds, for all workers at once.

    Args:
        models: Of the workers.
        grain: Samples in a grain.
    """

    def __init__(self, models: Sequence[StepTimeModel], grain: int) -> None:
        self._overhead = np.array([model.overhead_seconds for model in models])
        self._cost = np.array([model.seconds_per_sample for model in models]) * grain
        sizes = np.array([float(model.micro_batch_size) or UNLIMITED for model in models])
        self._piece = np.maximum(1.0, sizes // grain)

    def seconds(self, counts: Counts) -> Counts:
        """Busy time of so many grains; a worker without any is taken to start one."""
        numbers = np.maximum(1.0, np.ceil(counts / self._piece))
        found: Counts = self._overhead * numbers + self._cost * counts
        return found

    def inverse(self, seconds: float) -> Counts:
        """About the most grains that are done by a time; off by one at most."""
        with np.errstate(over="ignore"):
            whole = np.floor(seconds / (self._overhead + self._cost * self._piece))
            full = whole * self._piece
            left = seconds - whole * self._overhead - full * self._cost
            rest = np.floor((left - self._overhead) / self._cost)
        rest = np.where(full > 0, np.maximum(0.0, rest), rest)
        found: Counts = full + rest
        return found


def _earliest(
    done_by: Callable[[float], Counts], num_grains: int, *, late: float, ids: Sequence[WorkerId]
) -> Counts:
    """Grains per worker at the earliest time by which `num_grains` are done.

    Args:
        done_by: Grains that each worker finishes by a time; never falls as the time grows.
        num_grains: How many must be done.
        late: A time by which they are, seconds.
        ids: Who the workers are; breaks ties.
    """
    early = 0.0
    while True:
        middle = early + (late - early) / 2
        if not early < middle < late:
            break
        counts = done_by(middle)
        num_done = counts.sum()
        if num_done == num_grains:
            return counts
        if num_done > num_grains:
            late = middle
        else:
            early = middle
    # No time lies between `early` and `late`: what they differ by ends at the same instant.
    counts = done_by(early)
    tied = done_by(late) - counts
    order = sorted(np.flatnonzero(tied).tolist(), key=lambda rank: (ids[rank].node, ids[rank].slot))
    before = np.cumsum(tied[order]) - tied[order]
    counts[order] += np.clip(num_grains - counts.sum() - before, 0, tied[order])
    return counts


def slowest_seconds(models: Sequence[StepTimeModel], sizes: Sequence[int]) -> float:
    """Predicted busy time of the slowest worker under a plan, seconds."""
    return max(model.step_seconds(size) for model, size in zip(models, sizes, strict=True))
