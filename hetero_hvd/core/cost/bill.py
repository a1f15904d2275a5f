"""What stays of nodes cost in some time. A node without a price is named, never taken for free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_hvd.core.cost.presence import Stay

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class NodeCost:
    """What one node costs.

    Attributes:
        node: Its name.
        hours: How long it was in the job.
        prices_per_hour: Each that it had, in the order of time; without those not known.
        cost: Of the hours whose price is known, in the currency of nodes.yaml.
        unpriced_hours: Of the others.
    """

    node: str
    hours: float
    prices_per_hour: tuple[float, ...]
    cost: float
    unpriced_hours: float


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What all nodes cost.

    Attributes:
        nodes: By name; those that were there.
    """

    nodes: tuple[NodeCost, ...]

    @property
    def cost(self) -> float | None:
        """Of all that has a price; None: nothing has."""
        priced = [node.cost for node in self.nodes if node.prices_per_hour]
        return math.fsum(priced) if priced else None

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Names of the nodes that were there some time at no known price."""
        return tuple(node.node for node in self.nodes if node.unpriced_hours)

    @property
    def hours(self) -> float:
        """Of all nodes together."""
        return math.fsum(node.hours for node in self.nodes)


def bill_of(
    stays: Sequence[Stay], from_seconds: float = -math.inf, until_seconds: float = math.inf
) -> Bill:
    """What is to be paid between two times, seconds since 1970; by default for all."""
    return Bill(
        nodes=tuple(
            _node(node, [stay for stay in stays if stay.node == node], from_seconds, until_seconds)
            for node in sorted({stay.node for stay in stays})
            if any(s.node == node and s.seconds_within(from_seconds, until_seconds) for s in stays)
        )
    )


def _node(node: str, stays: Sequence[Stay], from_seconds: float, until_seconds: float) -> NodeCost:
    parts = [
        (stay.price_per_hour, stay.seconds_within(from_seconds, until_seconds)) for stay in stays
    ]
    parts = [(price, seconds) for price, seconds in parts if seconds]
    prices = dict.fromkeys(price for price, _ in parts if price is not None)
    return NodeCost(
        node=node,
        hours=math.fsum(seconds for _, seconds in parts) / HOUR_SECONDS,
        prices_per_hour=tuple(prices),
        cost=math.fsum(p * seconds for p, seconds in parts if p is not None) / HOUR_SECONDS,
        unpriced_hours=math.fsum(seconds for p, seconds in parts if p is None) / HOUR_SECONDS,
    )
