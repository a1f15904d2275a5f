"""What a recorded run cost in money and energy, as far as it was recorded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, starmap
from typing import Any, NamedTuple

from hetero_hvd.core.cost.bill import Bill, NodeCost, bill_of
from hetero_hvd.core.cost.energy import EnergyMeters, NodeEnergy
from hetero_hvd.core.cost.meters import interval_samples
from hetero_hvd.core.cost.presence import Stay, stays_of
from hetero_hvd.core.cost.training import Point, Target, Trained, trained_of
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.records.rollup import INTERVAL_SECONDS
from hetero_hvd.run.reports.share_times import newest_members

NO_PRICES: Mapping[str, float] = {}
LONGEST_INTERVAL_SECONDS = 600.0
"""Of a rollup that a target may have been reached in."""

GAP_RATIO = 0.01
"""Of a node's time; what is missing at its two ends is no news."""

KILOWATT_HOUR_SHOWN = 3.6e4


class Spent(NamedTuple):
    """Money and energy of some time.

    Attributes:
        bill: What was to be paid.
        energy: What was used, by node.
    """

    bill: Bill
    energy: tuple[NodeEnergy, ...]

    @property
    def joules(self) -> float | None:
        """Of all nodes that were measured; None: none was."""
        measured = [node.joules for node in self.energy if node.measured_seconds]
        return math.fsum(measured) if measured else None


class TimeCost(NamedTuple):
    """What some time cost.

    Attributes:
        seconds: How long.
        cost: Of the nodes that have a price; None: none has.
        joules: Of the nodes that were measured; None: none was.
    """

    seconds: float
    cost: float | None
    joules: float | None


@dataclass(frozen=True, kw_only=True)
class EpochCost:
    """What an epoch cost, all the times that it was under way, as far as its ends were seen.

    Attributes:
        epoch: Its number from 0.
        told: From when it was first heard of to when the next one was.
        least: It was no less; None: not known, of a record of an earlier version.
        most: It was no more; None: likewise.
    """

    epoch: int
    told: TimeCost
    least: TimeCost | None
    most: TimeCost | None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        bounds = {"least": self.least, "most": self.most}
        return {"epoch": self.epoch, **self.told._asdict()} | {
            name: bound and bound._asdict() for name, bound in bounds.items()
        }


class Reached(NamedTuple):
    """What it cost to reach a target.

    Attributes:
        target: What was to be reached.
        step: Applied steps at that time; None: it was not reached.
        spent: Until then.
    """

    target: Target
    step: int | None
    spent: Spent | None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; None: not reached, or not known."""
        spent = self.spent
        return {
            "target": str(self.target),
            "step": self.step,
            "cost": spent.bill.cost if spent else None,
            "unpriced": spent.bill.unpriced if spent else None,
            "joules": spent.joules if spent else None,
        }

    def __str__(self) -> str:
        if self.spent is None:
            return f"{self.target}: was not reached"
        cost, joules = self.spent.bill.cost, self.spent.joules
        parts = [f"{self.target}: reached after {self.step} steps"]
        unpriced = ", ".join(self.spent.bill.unpriced)
        parts.append("cost not known" if cost is None else f"cost {cost:.4g}")
        parts += [f"without {unpriced}"] if unpriced else []
        parts += [_joules(joules)] if joules is not None else []
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a run cost.

    Attributes:
        stays: Which node was there when, at which price.
        meters: What its nodes' meters showed.
        trained: What was got for it.
        points: The run over time.
    """

    stays: tuple[Stay, ...]
    meters: EnergyMeters
    trained: Trained
    points: tuple[Point, ...]

    @cached_property
    def run(self) -> Spent:
        """All of it."""
        return self.between(-math.inf, math.inf)

    @property
    def epochs(self) -> Iterator[EpochCost]:
        """Of each, by number."""
        for epoch in self.trained.epochs:
            spans = [span for span in self.trained.spans if span.epoch == epoch]
            yield EpochCost(
                epoch=epoch,
                told=self._of_times((span.from_seconds, span.until_seconds) for span in spans),
                least=self._bound((span.from_seconds, span.surely_until_seconds) for span in spans),
                most=self._bound((span.earliest_seconds, span.latest_seconds) for span in spans),
            )

    def _bound(self, times: Iterable[tuple[float, float]]) -> TimeCost | None:
        """Of times that may not be known."""
        known = list(times)
        return None if any(map(math.isnan, chain(*known))) else self._of_times(known)

    def _of_times(self, times: Iterable[tuple[float, float]]) -> TimeCost:
        """What all of them cost; one that ends before it begins is none."""
        spans = [(begin, max(begin, end)) for begin, end in times]
        spent = list(starmap(self.between, spans))
        return TimeCost(
            seconds=sum(end - begin for begin, end in spans),
            cost=_sum(part.bill.cost for part in spent),
            joules=_sum(part.joules for part in spent),
        )

    def between(self, from_seconds: float, until_seconds: float) -> Spent:
        """What was spent between two times, seconds since 1970."""
        return Spent(
            bill_of(self.stays, from_seconds, until_seconds),
            self.meters.used(self.stays, from_seconds, until_seconds),
        )

    def per_sample(self, amount: float | None) -> float | None:
        """A sum divided by the samples; None: one of both is not known."""
        samples = self.trained.samples
        return amount / samples if amount is not None and samples > 0 else None

    @property
    def newest_prices(self) -> dict[str, float]:
        """Node to its last price per hour; without those whose price was not known."""
        newest = {stay.node: stay.price_per_hour for stay in self.stays}
        return {node: price for node, price in newest.items() if price is not None}

    def until(self, target: Target, record: Record) -> Reached:
        """What was spent from the beginning to a target.

        Raises:
            UserError: The run has no such metric.
        """
        found = target.reached_at(record.events, self.points)
        if found is None:
            return Reached(target, None, None)
        return Reached(target, found[1], self.between(-math.inf, found[0]))

    def sums(self) -> dict[str, Any]:
        """What all of it was; None: not known."""
        bill, joules = self.run.bill, self.run.joules
        return {
            "cost": bill.cost,
            "unpriced": bill.unpriced,
            "node_hours": bill.hours,
            "joules": joules,
            "unmeasured": _unmeasured(self.run.energy),
            "steps": self.trained.steps,
            "samples": self.trained.samples,
            "cost_per_sample": self.per_sample(bill.cost),
            "joules_per_sample": self.per_sample(joules),
        }

    def as_dict(self) -> dict[str, Any]:
        """The sums, each node and each epoch, ready for JSON; None: not known."""
        return self.sums() | {
            "nodes": [
                asdict(node)
                | {
                    "joules": used.joules if used.measured_seconds else None,
                    "unmeasured_seconds": used.gap_seconds,
                    "meters": used.meters,
                }
                for node, used in zip(self.run.bill.nodes, self.run.energy, strict=True)
            ],
            "epochs": [epoch.as_dict() for epoch in self.epochs],
        }


def costs_of(record: Record, prices: Mapping[str, float] = NO_PRICES) -> Costs:
    """Read it from a record.

    Args:
        record: Of the run.
        prices: Node to its price per hour, in place of the recorded ones.
    """
    points = tuple(_points(record.rollups))
    heard = max((row["at_unix_seconds"] for row in record.rollups[-1:]), default=-math.inf)
    stays = stays_of(record.events, heard_until_seconds=heard, prices=prices)
    meters = EnergyMeters(interval_samples(record.samples))
    trained = trained_of(record.events, points, heard)
    if (mean := _mean_batch_size(record)) is not None:
        trained = replace(trained, samples=round(mean * trained.steps))
    return Costs(stays=stays, meters=meters, trained=trained, points=points)


def _mean_batch_size(record: Record) -> float | None:
    """Samples of all workers per step as they were measured; None: plans say how many they are."""
    joined = newest_members(record)
    if joined is None or joined.follows_plan:
        return None
    steps: dict[float, int] = defaultdict(int)
    for row in record.rollups:
        at = row["at_unix_seconds"]
        steps[at] = max(steps[at], row["num_steps"])
    num_steps = sum(steps.values())
    return sum(row["samples"] for row in record.rollups) / num_steps if num_steps else None


def _points(rollups: Sequence[dict[str, Any]]) -> Iterator[Point]:
    """One for each interval, at its end."""
    intervals: dict[float, dict[str, Any]] = {}
    for row in rollups:
        known = intervals.setdefault(row["at_unix_seconds"], row)
        if row["last_step"] > known["last_step"]:
            intervals[row["at_unix_seconds"]] = row
    starts = sorted(intervals)
    for start, following in zip(starts, [*starts[1:], math.inf], strict=False):
        longest = INTERVAL_SECONDS if math.isinf(following) else LONGEST_INTERVAL_SECONDS
        row = intervals[start]
        loss = math.nan if row["loss"] is None else row["loss"]
        yield Point(min(following, start + longest), row["last_step"], loss)


def _sum(amounts: Iterable[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return math.fsum(known) if known else None


def _unmeasured(energy: Sequence[NodeEnergy]) -> list[str]:
    return [node.node for node in energy if not node.measured_seconds]


def exposed_seconds(record: Record) -> float:
    """Reduction that nobody could hide, per step over the run; NaN: not measured."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in record.rollups:
        if row["comm_wait_seconds"] is not None:
            sums[row["worker"]][0] += row["comm_wait_seconds"]
            sums[row["worker"]][1] += row["num_steps"]
    return min((wait / steps for wait, steps in sums.values() if steps), default=math.nan)


def in_words(costs: Costs) -> Iterator[str]:
    """Lines for people, sums first; none where no node was there."""
    bill = costs.run.bill
    if not bill.nodes:
        return
    for what, words in sums_in_words(costs.sums()):
        yield f"{what} {words}"
    width = max(len(node.node) for node in bill.nodes)
    for node, used in zip(bill.nodes, costs.run.energy, strict=True):
        yield f"  {node.node:{width}}  {_node(node, used)}"


def sums_in_words(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What of `Costs.sums`, and how much: names who has no price, and who was not measured."""
    hours = f"{_hours(facts['node_hours'])} node-hours"
    if facts["unpriced"]:
        hours += f"; no price_per_hour: {', '.join(facts['unpriced'])}"
    each, cost = facts["cost_per_sample"], facts["cost"]
    million = f", {each * 1e6:.4g} per million samples" if each is not None else ""
    yield "cost", f"{'not known' if cost is None else f'{cost:.4g}'}{million} ({hours})"
    if facts["joules"] is None:
        return
    each = facts["joules_per_sample"]
    per_sample = f", {each:.4g} J per sample" if each is not None else ""
    missing = f" (not measured: {', '.join(facts['unmeasured'])})" if facts["unmeasured"] else ""
    yield "energy", f"{_joules(facts['joules'])}{per_sample}{missing}"


def _node(node: NodeCost, used: NodeEnergy) -> str:
    prices = " then ".join(f"{price:g}" for price in node.prices_per_hour)
    parts = [f"{_hours(node.hours)} h"]
    parts.append(f"at {prices} = {node.cost:.4g}" if prices else "no price")
    if prices and node.unpriced_hours:
        parts.append(f"{_hours(node.unpriced_hours)} h of them without a price")
    if used.measured_seconds:
        parts.append(f"{_joules(used.joules)} ({', '.join(used.meters)})")
        if used.gap_seconds > GAP_RATIO * used.seconds:
            parts.append(f"not measured for {used.gap_seconds:.0f} s")
    return "  ".join(parts)


def _hours(hours: float) -> str:
    """To hundredths, a short time to three digits."""
    return f"{hours:.2f}" if hours >= 1 else f"{hours:.3g}"


def _joules(joules: float) -> str:
    return f"{joules / 3.6e6:.4g} kWh" if joules >= KILOWATT_HOUR_SHOWN else f"{joules:.4g} J"
