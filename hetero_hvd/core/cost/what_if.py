"""Would it have been cheaper otherwise? Each answer with what it was computed from, or none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.cost.placement import (
    FAR_RATIO,
    ShareTime,
    is_varied,
    largest_shares,
    line_through,
    step_seconds,
)
from hetero_hvd.messages import WorkerId, WorkersJoined

HOUR_SECONDS = 3600.0
SAME_RATIO = 0.02
"""Costs that differ by less are called the same: the curves are not known better."""

ALWAYS: Mapping[WorkerId, str] = {}


@dataclass(frozen=True, kw_only=True)
class Without:
    """The run as it was and as it would have been without one node.

    Attributes:
        node: The one left out.
        problem: Why there is no answer; empty: there is one.
        inputs: What the answer stands on, in words.
        samples_per_second: With all, as the curves have it; NaN: no answer.
        samples_per_second_without: Without it.
        cost_per_million: With all, per million samples.
        cost_per_million_without: Without it.
    """

    node: str
    problem: str = ""
    inputs: tuple[str, ...] = ()
    samples_per_second: float = math.nan
    samples_per_second_without: float = math.nan
    cost_per_million: float = math.nan
    cost_per_million_without: float = math.nan

    @property
    def words(self) -> str:
        """The answer."""
        if self.problem:
            return f"without {self.node}: cannot be told: {self.problem}"
        saved = self.cost_per_million - self.cost_per_million_without
        ratio = -saved / self.cost_per_million if saved else 0.0
        slower = 1.0 - self.samples_per_second_without / self.samples_per_second
        speed = f"{slower:.0%} slower" if slower >= 0 else f"{-slower:.0%} faster"
        if abs(ratio) < SAME_RATIO:
            cost = "as dear"
        else:
            cost = f"{abs(ratio):.0%} {'cheaper' if ratio < 0 else 'dearer'} per sample"
        return (
            f"without {self.node}: {cost} and {speed} "
            f"({self.cost_per_million_without:.4g} instead of {self.cost_per_million:.4g} per "
            f"million samples, {self.samples_per_second_without:.0f} instead of "
            f"{self.samples_per_second:.0f} samples/s)"
        )


def without(
    node: str,
    joined: WorkersJoined,
    measured: Mapping[WorkerId, Sequence[ShareTime]],
    prices: Mapping[str, float],
    exposed_seconds: float,
    *,
    since: Mapping[WorkerId, str] = ALWAYS,
) -> Without:
    """Plan the newest membership anew without a node, and compare.

    Args:
        node: To leave out.
        joined: The membership.
        measured: What each worker needed for its shares.
        prices: Node to its price per hour; a node without a price is not among them.
        exposed_seconds: Reduction that nobody could hide, per step; taken to be the same for
            fewer workers. NaN: not measured.
        since: From when on a worker's times count, in words, where more was measured of it.
    """
    nodes = sorted({worker.node for worker in joined.workers})
    left = [worker for worker in joined.workers if worker.node != node]
    unmeasured = [
        f"{worker} {since.get(worker, '')}".rstrip()
        for worker in joined.workers
        if not measured.get(worker)
    ]
    if problem := _problem(node, nodes, unmeasured, prices):
        return Without(node=node, problem=problem)
    models = {worker: line_through(measured[worker]) for worker in joined.workers}
    reduction = exposed_seconds if math.isfinite(exposed_seconds) else 0.0
    largest = largest_shares(measured)
    all_seconds = step_seconds(joined, models, joined.workers, largest)
    left_seconds = step_seconds(joined, models, left, largest)
    if not math.isfinite(all_seconds + left_seconds):
        return Without(node=node, problem="the others cannot hold the global batch")
    size = joined.global_batch_size
    speed = size / (all_seconds + reduction)
    # One worker alone reduces with nobody.
    speed_without = size / (left_seconds + (reduction if len(left) > 1 else 0.0))
    total = math.fsum(prices[name] for name in nodes)
    return Without(
        node=node,
        inputs=(
            *(_in_words(each, measured[each], models[each], joined) for each in joined.workers),
            f"prices per hour: {_and([f'{name} {prices[name]:g}' for name in nodes])}",
            f"global batch {size}, reduction that nobody could hide {reduction * 1e3:.1f} ms a step"
            + ("" if math.isfinite(exposed_seconds) else " (not measured: taken as none)"),
        ),
        samples_per_second=speed,
        samples_per_second_without=speed_without,
        cost_per_million=total / HOUR_SECONDS * 1e6 / speed,
        cost_per_million_without=(total - prices[node]) / HOUR_SECONDS * 1e6 / speed_without,
    )


def _problem(
    node: str, nodes: Sequence[str], unmeasured: Sequence[str], prices: Mapping[str, float]
) -> str:
    """Why nothing can be told; empty: it can."""
    if node not in nodes:
        return f"it is not in the newest membership of {_and(nodes)}"
    if len(nodes) == 1:
        return "no other node takes part"
    if unmeasured:
        return f"no speed was measured of {_and(unmeasured)}"
    unpriced = [name for name in nodes if name not in prices]
    return f"{_and(unpriced)}: no price_per_hour" if unpriced else ""


def _in_words(
    worker: WorkerId, rows: Sequence[ShareTime], model: StepTimeModel, joined: WorkersJoined
) -> str:
    if joined.shares_vary:
        return f"{worker}: {model.seconds_per_sample * 1e3:.4f} ms per sample, over all its samples"
    smallest, largest = min(row.share for row in rows), max(row.share for row in rows)
    said = (
        f"{worker}: {model.overhead_seconds * 1e3:.2f} ms + "
        f"{model.seconds_per_sample * 1e3:.4f} ms per sample"
    )
    if is_varied(rows):
        return (
            f"{said}, measured at shares of {smallest:.0f} to {largest:.0f}; above "
            f"{FAR_RATIO * largest:.0f} its time is taken as proportional to its share"
        )
    return (
        f"{said}, measured at shares of {largest:.0f} alone, so its time is taken as proportional "
        "to its share"
    )


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """After how many hours an owned machine is cheaper than a rented one.

    Attributes:
        node: The machine.
        problem: Why there is no answer; empty: there is one.
        inputs: What the answer stands on, in words.
        hours: Of training; infinite: never; NaN: no answer.
    """

    node: str
    problem: str = ""
    inputs: tuple[str, ...] = ()
    hours: float = math.nan

    @property
    def words(self) -> str:
        """The answer."""
        if self.problem:
            return f"{self.node}, owned or rented: cannot be told: {self.problem}"
        if math.isinf(self.hours):
            return f"{self.node}: to own it never pays: its power alone costs as much as the rent"
        return (
            f"{self.node}: to own it is cheaper after {self.hours:.0f} hours of training "
            f"({self.hours / 24:.1f} days)"
        )


def break_even(
    node: str,
    purchase_price: float,
    rent_per_hour: float | None,
    power_price: float | None,
    mean_watts: float,
) -> BreakEven:
    """Compare a purchase with the rent, both for hours of this training.

    Args:
        node: The machine.
        purchase_price: Once, in the currency of the prices, >= 0.
        rent_per_hour: Its `price_per_hour`; None: not known.
        power_price: Per kilowatt-hour; None: power is not paid for by its owner.
        mean_watts: What was measured while it was in the job; NaN: nothing.
    """
    if rent_per_hour is None:
        return BreakEven(node=node, problem="it has no price_per_hour to compare with")
    if power_price is None:
        power_per_hour, power = 0.0, "power not paid for (no --power-price)"
    elif not math.isfinite(mean_watts):
        return BreakEven(node=node, problem="no energy of it was measured, and power has a price")
    else:
        power_per_hour = mean_watts / 1e3 * power_price
        power = (
            f"power {power_per_hour:.4g} per hour ({mean_watts:.0f} W at {power_price:g} per kWh)"
        )
    saved = rent_per_hour - power_per_hour
    return BreakEven(
        node=node,
        inputs=(f"bought for {purchase_price:g}", f"rent {rent_per_hour:g} per hour", power),
        hours=purchase_price / saved if saved > 0 else math.inf,
    )


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
