"""The balancer in the thread of the training: for tests of what follows from its plans."""

from __future__ import annotations

import time
from dataclasses import replace

from hetero_hvd.core.balance.policies.registry import make_policy
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.messages import BatchPlan, Calibrated, StepsTimed, WorkersJoined
from hetero_hvd.worker.session.plan_source import even_plan


class LocalPlanner:
    """A planner without a thread of its own, whose plans do not depend on how fast that would be.

    Args:
        config: How to divide the batch.
    """

    def __init__(self, config: BalanceConfig) -> None:
        self._config = config
        self._policy = make_policy(config)
        self._plan: BatchPlan | None = None

    def use_grain(self, grain: int) -> None:
        """Plan in grains of so many samples from now on; before anything else."""
        if grain != self._config.grain:
            self._config = replace(self._config, grain=grain)
            self._policy = make_policy(self._config)

    def joined(self, event: WorkersJoined) -> BatchPlan:
        """Ask the balancer."""
        self._handle(event)
        if self._plan is None or self._plan.rendezvous_id != event.rendezvous_id:
            return even_plan(event)
        return self._plan

    def calibrated(self, event: Calibrated) -> BatchPlan | None:
        """Ask the balancer, too."""
        self._handle(event)
        return self._plan

    def timed(self, event: StepsTimed) -> None:
        """Tell the balancer."""
        self._handle(event)

    def newest(self) -> BatchPlan | None:
        """What the balancer said last."""
        return self._plan

    def _handle(self, event: WorkersJoined | Calibrated | StepsTimed) -> None:
        for result in self._policy.handle(event, now_seconds=time.monotonic()):
            if isinstance(result, BatchPlan):
                self._plan = result
