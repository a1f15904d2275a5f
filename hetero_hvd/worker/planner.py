"""Where plans come from: the driver's balancer, or the same code in rank 0 when there is no driver."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from hetero_hvd.core.cluster import BalanceConfig, ClusterState
from hetero_hvd.errors import InfeasiblePlanError
from hetero_hvd.messages import BatchPlan, Evaluated, StepsTimed, WorkersJoined
from hetero_hvd.worker.client import DriverClient

logger = logging.getLogger(__name__)

PLAN_TIMEOUT_SECONDS = 2.0
"""How long a new membership waits for the driver's first plan before it starts with its own."""


class Planner(Protocol):
    """Used by rank 0 only."""

    def joined(self, event: WorkersJoined) -> BatchPlan:
        """The first plan of a membership."""

    def timed(self, event: StepsTimed) -> None:
        """Take in one exchange of timings."""

    def evaluated(self, event: Evaluated) -> None:
        """Take in the result of an evaluation."""

    def newest(self) -> BatchPlan | None:
        """The newest plan, of whatever membership."""


class LocalPlanner:
    """The balancer in this process: for `horovodrun`, elastic or not, and for a script run alone."""

    def __init__(self, config: BalanceConfig) -> None:
        self._cluster = ClusterState(config)
        self._plan: BatchPlan | None = None

    def joined(self, event: WorkersJoined) -> BatchPlan:
        """Ask the balancer."""
        self._handle(event)
        if self._plan is None or self._plan.rendezvous_id != event.rendezvous_id:
            return even_plan(event)
        return self._plan

    def timed(self, event: StepsTimed) -> None:
        """Tell the balancer."""
        self._handle(event)

    def evaluated(self, event: Evaluated) -> None:
        """Nobody else to tell."""

    def newest(self) -> BatchPlan | None:
        """What the balancer said last."""
        return self._plan

    def _handle(self, event: WorkersJoined | StepsTimed) -> None:
        for result in self._cluster.handle(event, now_seconds=time.monotonic()):
            if isinstance(result, BatchPlan):
                self._plan = result
                logger.info("plan %d: %s", result.plan_id, result.reason)


class DriverPlanner:
    """The driver's balancer, through the channel. Out of its reach, the last plan stays."""

    def __init__(self, client: DriverClient) -> None:
        self._client = client

    def joined(self, event: WorkersJoined) -> BatchPlan:
        """Ask the driver; if it does not answer in time, divide evenly."""
        if self._client.send(event):
            plan = self._client.wait_for_plan(
                event.rendezvous_id, timeout_seconds=PLAN_TIMEOUT_SECONDS
            )
            if plan is not None:
                return plan
        logger.warning("no plan from the driver: starting with even shares")
        return even_plan(event)

    def timed(self, event: StepsTimed) -> None:
        """Tell the driver."""
        self._client.send(event)

    def evaluated(self, event: Evaluated) -> None:
        """Tell the driver."""
        self._client.send(event)

    def newest(self) -> BatchPlan | None:
        """What the driver said last."""
        return self._client.plan


def even_plan(event: WorkersJoined) -> BatchPlan:
    """Even shares within the capacities; what is left goes where there is room, in rank order.

    Raises:
        InfeasiblePlanError: The capacities together do not hold the global batch.
    """
    room = [event.global_batch_size if cap < 0 else cap for cap in event.capacities]
    if sum(room) < event.global_batch_size:
        raise InfeasiblePlanError(global_batch_size=event.global_batch_size, capacity=sum(room))
    shares = [0] * len(room)
    left = event.global_batch_size
    while left:
        open_ranks = [rank for rank, space in enumerate(room) if space]
        for place, rank in enumerate(open_ranks):
            part = min(room[rank], -(-left // (len(open_ranks) - place)))
            shares[rank] += part
            room[rank] -= part
            left -= part
    return BatchPlan(
        rendezvous_id=event.rendezvous_id,
        plan_id=0,
        from_step=event.applied_steps,
        exchange_steps=1,
        workers=event.workers,
        local_batch_sizes=tuple(shares),
        reason="even shares",
    )
