"""Which rules there are, as nodes.yaml, its documentation and `hetero-hvd simulate` know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hetero_hvd.core.balance.balancer_state import BalancerState
from hetero_hvd.core.balance.hysteresis import Decision
from hetero_hvd.core.balance.known import SpeedProfile
from hetero_hvd.core.balance.policies.published import LbbRule, OmniLearnRule, StaticSplit
from hetero_hvd.core.balance.settings import DEFAULT_RULE, BalanceConfig
from hetero_hvd.messages import BatchPlan, Calibrated, StepsTimed, WorkerId, WorkersJoined

Remembered = Mapping[WorkerId, SpeedProfile]
"""What earlier jobs have learnt about the same workers."""


class Policy(Protocol):
    """What decides who processes how many samples."""

    @property
    def plan(self) -> BatchPlan | None:
        """The newest plan; None before the first rendezvous."""

    def handle(
        self, event: WorkersJoined | Calibrated | StepsTimed, *, now_seconds: float
    ) -> Sequence[BatchPlan | Decision]:
        """Take one event in; give back what follows, in order."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One value of the setting `rule`.

    Attributes:
        make: Makes a policy.
        words: What it does; completes its name in the documentation.
        goes_by_speeds: Whether it needs to be told how fast the nodes are.
        plans_in_grains: Whether it keeps to `BalanceConfig.grain`.
    """

    make: Callable[[BalanceConfig, Remembered], Policy]
    words: str
    goes_by_speeds: bool = False
    plans_in_grains: bool = False


RULES = {
    DEFAULT_RULE: Rule(
        make=BalancerState,
        words="follows a model of each worker's step time",
        plans_in_grains=True,
    ),
    "static": Rule(
        make=StaticSplit.new, words="keeps to the nodes' relative_speed", goes_by_speeds=True
    ),
    "lbb": Rule(make=LbbRule.new, words="is Load Balanced Batching as published, to compare with"),
    "omnilearn": Rule(make=OmniLearnRule.new, words="is OmniLearn as published, likewise"),
}
"""All that there are, by name, as the documentation lists them."""


def make_policy(config: BalanceConfig, remembered: Remembered | None = None) -> Policy:
    """The policy that `config.rule` names; only ours makes use of what is remembered."""
    return RULES[config.rule].make(config, {} if remembered is None else remembered)
