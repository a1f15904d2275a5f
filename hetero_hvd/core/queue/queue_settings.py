"""What the policy weighs, with the reason of each default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSettings:
    """The settings of a queue.

    Attributes:
        half_life_seconds: After so long a use counts half. A week, as is usual for Slurm's
            PriorityDecayHalfLife.
        tolerance_seconds: A user who is behind the mean by what the whole cluster does in so long
            weighs e times as much. The smaller, the nearer to equal shares at each instant, and the
            longer the mean completion.
        remaining_exponent: 0: remaining work is not looked at; 1: who would be done first comes
            first (shortest remaining processing time). Between them the long ones get a part.
        unknown_remaining_seconds: What a job whose work nobody knows is taken to have left at its
            start, on the fastest device; later as much as it has had (for durations whose tail is
            heavy the mean residual life grows so).
        wait_limit_seconds: A job that has waited so long has its devices reserved.
        quantum_seconds: For so long a job that was started by a reservation keeps its fewest.
        start_seconds: For so long a device that joins does nothing: imports, data.
        pause_seconds: For so long a job stands still when its devices change; measured 0.2 to 0.5.
        restart_seconds: What it costs to shrink a job to nothing and to start it again, beside
            `start_seconds`.
        horizon_seconds: For so long a placement is taken to last, when it is weighed what a change
            costs.
    """

    half_life_seconds: float = 7 * 86400.0
    tolerance_seconds: float = 3600.0
    remaining_exponent: float = 1.0
    unknown_remaining_seconds: float = 1800.0
    wait_limit_seconds: float = 86400.0
    quantum_seconds: float = 1800.0
    start_seconds: float = 30.0
    pause_seconds: float = 0.3
    restart_seconds: float = 60.0
    horizon_seconds: float = 600.0
