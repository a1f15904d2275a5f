"""How many steps may be under way at once: bounded staleness, and when it is not safe."""

from __future__ import annotations

from typing import Any

from hetero_hvd.core.numerics.divergence import DivergenceGuard
from hetero_hvd.worker.options import StepOptions


class Staleness:
    """The bound in force; part of the replica, as every worker must wait for the same steps.

    Args:
        bound: Steps under way after a step has been taken, 0 to 8; 0 = each step is applied before
            the next begins.
        warmup_steps: So many steps are applied with bound 0 first: the early gradients are large
            and change fast.

    Attributes:
        bound: As above.
        reason: Why it fell back to 0, in words; empty if it did not.
    """

    def __init__(self, bound: int, warmup_steps: int = 0) -> None:
        self.bound = bound
        self._warmup_steps = warmup_steps
        self._applied_steps = 0
        self._guard = DivergenceGuard()
        self.reason = ""

    @property
    def now(self) -> int:
        """The bound at this moment."""
        if self.reason or self._applied_steps < self._warmup_steps:
            return 0
        return self.bound

    def applied(self, loss: float) -> bool:
        """One more step is applied.

        Returns:
            Whether the bound has fallen back to 0 just now.
        """
        self._applied_steps += 1
        if not self.bound or self.reason:
            return False
        self.reason = self._guard.observe(loss)
        return bool(self.reason)

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        guard = dict(self._guard.state)
        return {"applied_steps": self._applied_steps, "reason": self.reason, "guard": guard}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take over another worker's."""
        self._applied_steps = state["applied_steps"]
        self.reason = state["reason"]
        self._guard.state = dict(state["guard"])


def staleness_of(options: StepOptions) -> Staleness:
    """What the options ask for."""
    return Staleness(options.staleness_bound or 0, options.staleness_warmup_steps or 0)
