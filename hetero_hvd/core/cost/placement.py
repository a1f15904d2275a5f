"""What other sets of workers would do: curves of step times, and the best plan on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_hvd.core.balance.planner import best_plan, stretched
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.errors import InfeasiblePlanError
from hetero_hvd.messages import WorkerId, WorkersJoined

DISTINCT_RATIO = 0.2
"""Two shares that differ by more tell what of a step's time does not depend on the share."""

FAR_RATIO = 1.5
"""Nothing is known of a share that is so many times as large as any that was measured."""

ANY_SHARE: Mapping[WorkerId, float] = {}


@dataclass(frozen=True, kw_only=True)
class ShareTime:
    """What a worker needed for a share, mean over some time.

    Attributes:
        share: Samples per step, > 0.
        busy_seconds: Its own time in a step.
        num_steps: So many were measured.
    """

    share: float
    busy_seconds: float
    num_steps: float


def step_seconds(
    joined: WorkersJoined,
    models: Mapping[WorkerId, StepTimeModel],
    workers: Sequence[WorkerId],
    largest: Mapping[WorkerId, float] = ANY_SHARE,
) -> float:
    """Of the best plan for these workers, without the reduction; infinite: they cannot hold it.

    Args:
        joined: The membership that they are of.
        models: Curve of each worker.
        workers: Who would train.
        largest: Share of each worker that is the largest one that was measured. Who would get far
            more is taken to need longer in proportion from there on, whatever its curve says: two
            speeds of a worker look like a time that does not depend on the share. A worker that is
            not among them keeps its curve for any share.
    """
    pairs = zip(joined.workers, joined.capacities, strict=True)
    capacities = [capacity for worker, capacity in pairs if worker in workers]
    part = WorkersJoined(
        rendezvous_id=joined.rendezvous_id,
        workers=tuple(workers),
        applied_steps=joined.applied_steps,
        global_batch_size=joined.global_batch_size,
        capacities=stretched(capacities, joined.global_batch_size),
        prefetch_steps=joined.prefetch_steps,
    )
    own = {worker: models[worker] for worker in workers}
    while True:
        try:
            plan = best_plan(own, part, trusted=[-1] * len(workers), grain=max(1, joined.undivided))
        except InfeasiblePlanError:
            return math.inf
        shares = dict(zip(own, plan, strict=True))
        far = {
            worker: _proportional(own[worker], largest[worker])
            for worker, share in shares.items()
            if share > FAR_RATIO * largest.get(worker, math.inf) and own[worker].overhead_seconds
        }
        if not far:
            return max(own[worker].step_seconds(share) for worker, share in shares.items())
        own |= far


def largest_shares(times: Mapping[WorkerId, Sequence[ShareTime]]) -> dict[WorkerId, float]:
    """That were measured of each worker."""
    return {worker: max(row.share for row in rows) for worker, rows in times.items() if rows}


def _proportional(model: StepTimeModel, share: float) -> StepTimeModel:
    """A line through zero and what a curve says of a share."""
    slope = model.seconds_per_sample + model.overhead_seconds / share
    return StepTimeModel(overhead_seconds=0.0, seconds_per_sample=slope)


def line_through(rows: Sequence[ShareTime]) -> StepTimeModel:
    """A line through what was measured; through zero, where there is but one share."""
    steps = math.fsum(row.num_steps for row in rows)
    share = math.fsum(row.num_steps * row.share for row in rows) / steps
    seconds = math.fsum(row.num_steps * row.busy_seconds for row in rows) / steps
    slope = seconds / share
    if is_varied(rows):
        spread = math.fsum(row.num_steps * (row.share - share) ** 2 for row in rows)
        together = math.fsum(
            row.num_steps * (row.share - share) * (row.busy_seconds - seconds) for row in rows
        )
        slope = min(max(together / spread, 1e-3 * slope), slope)  # an overhead is never negative
    return StepTimeModel(overhead_seconds=seconds - slope * share, seconds_per_sample=slope)


def flattest_line(rows: Sequence[ShareTime]) -> StepTimeModel:
    """As `line_through`; where there is but one share, a step takes as long with more samples.

    Both are the ends of what is possible then: nothing, or all of its time, depends on the share.
    """
    line = line_through(rows)
    if is_varied(rows):
        return line
    steps = math.fsum(row.num_steps for row in rows)
    share = math.fsum(row.num_steps * row.share for row in rows) / steps
    slope = 1e-3 * line.seconds_per_sample  # a planner wants some
    overhead = line.overhead_seconds + (line.seconds_per_sample - slope) * share
    return StepTimeModel(overhead_seconds=overhead, seconds_per_sample=slope)


def is_varied(rows: Sequence[ShareTime]) -> bool:
    """Whether its shares tell what of a step's time does not depend on them."""
    smallest, largest = min(row.share for row in rows), max(row.share for row in rows)
    return largest - smallest > DISTINCT_RATIO * largest
