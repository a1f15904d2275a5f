"""The rules of the literature, and a static split.

They act on the newest table of timings, through the same door as `BalancerState`, so that a
simulation and a real run drive all of them alike. They know no capacities, no uncertainty and no
overheads; none acts on a table that was measured before its last plan came into force.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from hetero_hvd.core.balance.calibration import unused_in_words
from hetero_hvd.core.balance.hysteresis import Decision
from hetero_hvd.core.balance.planner import even_plan, first_plan, next_plan
from hetero_hvd.core.balance.settings import BalanceConfig
from hetero_hvd.messages import BatchPlan, Calibrated, StepsTimed, WorkersJoined


class StaticSplit:
    """Shares in proportion to the given relative speeds, for ever; even ones without any.

    With speeds measured beforehand this is what a careful user does by hand; with the shares of the
    best plan as speeds it is the oracle.
    """

    def __init__(self, config: BalanceConfig) -> None:
        self._config = config
        self._joined: WorkersJoined | None = None
        self._plan: BatchPlan | None = None

    @classmethod
    def new(cls, config: BalanceConfig, _remembered: object) -> Self:
        """One that has learnt nothing yet: what earlier jobs have is nothing to these rules."""
        return cls(config)

    @property
    def plan(self) -> BatchPlan | None:
        """See `Policy`."""
        return self._plan

    def handle(
        self,
        event: WorkersJoined | Calibrated | StepsTimed,
        *,
        now_seconds: float,  # noqa: ARG002 - the rules know no time
    ) -> Sequence[BatchPlan | Decision]:
        """See `Policy`."""
        if isinstance(event, WorkersJoined):
            more = "" if self._joined else unused_in_words(self._config, event)
            self._joined = event
            self._plan = first_plan(event, self._first(event), reason=f"start{more}")
            return [self._plan]
        joined, plan = self._joined, self._plan
        if isinstance(event, Calibrated):  # none of these rules asks for it
            return []
        if joined is None or plan is None or event.rendezvous_id != joined.rendezvous_id:
            return []
        sizes = [row.local_batch_size for row in event.timings]
        busy = [row.busy_seconds if row.num_steps else math.nan for row in event.timings]
        is_ours = tuple(sizes) == plan.local_batch_sizes and all(seconds > 0 for seconds in busy)
        first_step = joined.applied_steps + self._config.baseline_steps
        if event.step <= first_step or not is_ours:
            return []
        changed = tuple(self._next(sizes, busy))
        if changed == plan.local_batch_sizes:
            return []
        self._plan = next_plan(
            plan, joined, changed, step=event.step, exchange_steps=1, reason=self._config.rule
        )
        return [self._plan]

    def _first(self, event: WorkersJoined) -> tuple[int, ...]:
        speeds = self._config.relative_speeds
        if not speeds:
            return even_plan(event, grain=max(event.undivided, self._config.grain))
        weights = [speeds.get(worker.node, 1.0) for worker in event.workers]
        return in_proportion(event.global_batch_size, weights)

    def _next(self, sizes: Sequence[int], busy: Sequence[float]) -> Sequence[int]:  # noqa: ARG002
        """The shares to come, from those measured and the seconds that they took."""
        return sizes


class LbbRule(StaticSplit):
    """Load Balanced Batching, as published (FLYING37520/LBB, LBB.py, "dynamic tuning").

    The spread (max - min) / mean of the times decides: up to 6 % nothing is done; up to 15 %, or
    within 30 quiet steps after a jump, one sample goes from the slowest to the fastest; above, all
    shares are solved for anew, each worker's start-up cost being known and its throughput that of
    the last step. The profiling run that gives the start-up costs is spared: they are taken as 0.
    """

    QUIET, FINE, COARSE, QUIET_STEPS = 0.05, 0.06, 0.15, 30

    def __init__(self, config: BalanceConfig) -> None:
        super().__init__(config)
        self._num_quiet = self.QUIET_STEPS + 1

    def _next(self, sizes: Sequence[int], busy: Sequence[float]) -> Sequence[int]:
        spread = (max(busy) - min(busy)) * len(busy) / sum(busy)
        shares = list(sizes)
        self._num_quiet += spread <= self.FINE
        may_jump = self._num_quiet > self.QUIET_STEPS
        if spread > self.COARSE and may_jump:
            self._num_quiet = 0
            return in_proportion(sum(sizes), [n / t for n, t in zip(sizes, busy, strict=True)])
        if self.QUIET < spread <= self.COARSE or not may_jump:
            slowest, fastest = busy.index(max(busy)), busy.index(min(busy))
            if shares[slowest] > 1:
                shares[slowest] -= 1
                shares[fastest] += 1
        return shares


class OmniLearnRule(StaticSplit):
    """Proportional control, as in OmniLearn (Tyagi and Sharma, IEEE TPDS 2025).

    Each worker's error is its smoothed time less the mean; its share falls by error times its
    throughput, b' = b * mean / t. A dead band keeps the shares unless one would change by 5 %.
    """

    DEAD_BAND, SMOOTHING = 0.05, 0.3

    def __init__(self, config: BalanceConfig) -> None:
        super().__init__(config)
        self._smooth: list[float] = []

    def _next(self, sizes: Sequence[int], busy: Sequence[float]) -> Sequence[int]:
        before = self._smooth if len(self._smooth) == len(busy) else busy
        self._smooth = [
            old + self.SMOOTHING * (new - old) for old, new in zip(before, busy, strict=True)
        ]
        mean = sum(self._smooth) / len(busy)
        wanted = [n * mean / t for n, t in zip(sizes, self._smooth, strict=True)]
        changes = [abs(new / n - 1) for new, n in zip(wanted, sizes, strict=True)]
        if max(changes) <= self.DEAD_BAND:
            return sizes
        self._smooth = []
        return in_proportion(sum(sizes), wanted)


def in_proportion(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole samples in proportion to the weights, at least one each; they sum to `total`."""
    wanted = [max(1.0, total * weight / sum(weights)) for weight in weights]
    sizes = [math.floor(size) for size in wanted]
    order = sorted(range(len(sizes)), key=lambda rank: (sizes[rank] - wanted[rank], rank))
    for rank in order[: max(0, total - sum(sizes))]:
        sizes[rank] += 1
    while sum(sizes) > total:
        sizes[sizes.index(max(sizes))] -= 1
    return tuple(sizes)
