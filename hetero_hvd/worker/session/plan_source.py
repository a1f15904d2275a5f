"""Where plans come from: the driver's balancer, or the same code in rank 0 without a driver."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Protocol

from hetero_hvd.core.balance import planner
from hetero_hvd.core.balance.balancer_state import BalancerState
from hetero_hvd.core.balance.policies.registry import make_policy
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.messages import BatchPlan, Evaluated, StepsTimed, WorkersJoined
from hetero_hvd.worker.session.driver_client import DriverClient

logger = logging.getLogger(__name__)

PLAN_TIMEOUT_SECONDS = 2.0
"""How long a new membership waits for the driver's first plan before it starts with its own."""


class Planner(Protocol):
    """Used by rank 0 only, but for `use_grain` and `evaluated`."""

    def use_grain(self, grain: int) -> None:
        """Plan in grains of so many samples from now on; before anything else."""

    def joined(self, event: WorkersJoined) -> BatchPlan:
        """The first plan of a membership."""

    def timed(self, event: StepsTimed) -> None:
        """Take in one exchange of timings."""

    def evaluated(self, event: Evaluated) -> None:
        """Take in the result of an evaluation."""

    def need_all(self) -> None:
        """An `Evaluated` of a worker was told that has `needs_all`."""

    def newest(self) -> BatchPlan | None:
        """The newest plan, of whatever membership."""


class LocalPlanner:
    """The balancer in this process: for `horovodrun`, elastic or not, and for a lone script."""

    def __init__(self, config: BalanceConfig) -> None:
        self._config = config
        self._cluster = make_policy(config)
        self._plan: BatchPlan | None = None

    def use_grain(self, grain: int) -> None:
        """Plan in grains of so many samples from now on; before anything else."""
        if grain != self._config.grain:
            self._config = replace(self._config, grain=grain)
            self._cluster = make_policy(self._config)

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
        """It is the script that wants to know."""

    def need_all(self) -> None:
        """Tell the balancer."""
        if isinstance(self._cluster, BalancerState):
            self._cluster.need_all()

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

    def use_grain(self, grain: int) -> None:
        """The driver knows: it has started this worker's job with that grain."""

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

    def need_all(self) -> None:
        """The driver knows: each worker has its own channel to it."""

    def newest(self) -> BatchPlan | None:
        """What the driver said last."""
        return self._client.plan


def even_plan(event: WorkersJoined) -> BatchPlan:
    """Even shares within the capacities.

    Raises:
        InfeasiblePlanError: The capacities together do not hold the global batch.
    """
    sizes = planner.even_plan(event, grain=event.undivided)
    return planner.first_plan(event, sizes, reason="even shares", plan_id=0)
