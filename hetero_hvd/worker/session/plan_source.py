"""Where plans come from: the driver's balancer, or the same code in rank 0 without a driver."""

from __future__ import annotations

import logging
from typing import Protocol

from hetero_hvd.core.balance import planner
from hetero_hvd.messages import BatchPlan, Calibrated, StepsTimed, WorkersJoined
from hetero_hvd.worker.lead.recording import Recording
from hetero_hvd.worker.session.driver_client import DriverClient

logger = logging.getLogger(__name__)

PLAN_TIMEOUT_SECONDS = 2.0
"""How long a new membership waits for the driver's first plan before it starts with its own."""


class Planner(Protocol):
    """Used by rank 0 only, but for `use_grain`."""

    def use_grain(self, grain: int) -> None:
        """Plan in grains of so many samples from now on; before anything else."""

    def joined(self, event: WorkersJoined) -> BatchPlan:
        """The first plan of a membership."""

    def calibrated(self, event: Calibrated) -> BatchPlan | None:
        """The plan that follows from what the members have measured; None: there is no answer."""

    def timed(self, event: StepsTimed) -> None:
        """Take in one exchange of timings."""

    def newest(self) -> BatchPlan | None:
        """The newest plan, of whatever membership."""


class LeadPlanner:
    """The balancer in a thread of this process: for `horovodrun`, and for a script that runs alone.

    Args:
        recording: Leads the run where this is rank 0.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._grain = 1

    def use_grain(self, grain: int) -> None:
        """Plan in grains of so many samples from now on; before anything else."""
        self._grain = grain

    def joined(self, event: WorkersJoined) -> BatchPlan:
        """Ask the balancer; if it does not answer in time, divide evenly."""
        plan = self._recording.joined(event, self._grain)
        return plan if plan is not None else even_plan(event)

    def calibrated(self, event: Calibrated) -> BatchPlan | None:
        """Ask the balancer."""
        return self._recording.calibrated(event)

    def timed(self, event: StepsTimed) -> None:
        """Tell the balancer."""
        self._recording.tell(event)

    def newest(self) -> BatchPlan | None:
        """What the balancer said last."""
        return self._recording.newest_plan


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

    def calibrated(self, event: Calibrated) -> BatchPlan | None:
        """Ask the driver."""
        if not self._client.send(event):
            return None
        return self._client.wait_for_plan(
            event.rendezvous_id,
            timeout_seconds=PLAN_TIMEOUT_SECONDS,
            newer_than=event.plan_id,
        )

    def timed(self, event: StepsTimed) -> None:
        """Tell the driver."""
        self._client.send(event)

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
