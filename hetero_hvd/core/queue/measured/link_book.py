"""What links cost, learnt from the reductions of the jobs that run.

A reduction is as slow as the slowest link among its nodes, so one measurement tells of a set of
nodes: each of its links is at least so fast. A node's link is taken to be as slow as the fastest of
the sets that it was in: whose set was slow and who was in a fast one, too, is not to blame. Where
several may be, all are held to be as slow, until one after the other is tried again.

What was measured lapses, else a mended link would never be used again: after ten minutes, and after
twice as long each time that it turns out to be as slow as before, up to a day. What contradicts a
newer measurement is forgotten at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

LEAST_BYTES = 4 * 2**20
"""Of a step's gradients: the time of fewer is latency, and tells nothing of more."""

SAME_RATIO = 1.2
"""Costs that differ by no more are one: measurements are noisy, and a new plan has its price."""

CHANGED_RATIO = 2.0
"""A link whose cost has changed by more has been mended or damaged."""

FIRST_PATIENCE_SECONDS, LAST_PATIENCE_SECONDS = 600.0, 86400.0
"""For so long a measurement counts; as for devices that ail."""

FEWEST_NODES = 4
"""So many have to be measured until the others are taken to be as they are."""

MAX_SETS = 500
STEPS_PER_DOUBLING = 2
"""Costs are rounded so that nodes with like links are of one class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSet:
    """What a job's reductions have shown of the links of its nodes.

    Attributes:
        nodes: Names of its nodes, sorted; at least two.
        seconds_per_byte: Inverse of the bus bandwidth (see `core.bandwidth`), > 0.
        num_bytes: Of a step's gradients, by which it was measured.
        at_seconds: When, on the queue's clock; the newest time.
        patience_seconds: For so long it counts.
    """

    nodes: tuple[str, ...]
    seconds_per_byte: float
    num_bytes: float
    at_seconds: float
    patience_seconds: float = FIRST_PATIENCE_SECONDS


class LinkBook:
    """Links of the cluster's nodes, as far as they were measured.

    Args:
        found: What another one knew.
    """

    def __init__(self, found: Iterable[MeasuredSet] = ()) -> None:
        self._sets = {each.nodes: each for each in found}
        self._costs: tuple[float, LinkCosts] | None = None  # since when; None: a set has changed

    @property
    def facts(self) -> tuple[MeasuredSet, ...]:
        """All that it knows, the oldest first."""
        return tuple(sorted(self._sets.values(), key=lambda each: each.at_seconds))

    def note(
        self, nodes: Iterable[str], seconds_per_byte: float, num_bytes: float, now_seconds: float
    ) -> bool:
        """Take in a measurement.

        Args:
            nodes: Between which the job has reduced; of one node alone nothing is learnt.
            seconds_per_byte: See `MeasuredSet`.
            num_bytes: See `MeasuredSet`; of fewer than `LEAST_BYTES` nothing is learnt.
            now_seconds: On the queue's clock.

        Returns:
            Whether it says something new.
        """
        key = tuple(sorted(set(nodes)))
        if len(key) < 2 or num_bytes < LEAST_BYTES or not 0 < seconds_per_byte < math.inf:  # noqa: PLR2004
            return False
        new = MeasuredSet(
            nodes=key,
            seconds_per_byte=seconds_per_byte,
            num_bytes=num_bytes,
            at_seconds=now_seconds,
        )
        self._costs = None
        if (old := self._sets.get(key)) is not None:
            has_lapsed = now_seconds >= old.at_seconds + old.patience_seconds / len(key)
            ratio = seconds_per_byte / old.seconds_per_byte
            if not has_lapsed and ratio > 1 and num_bytes < old.num_bytes / CHANGED_RATIO:
                return False  # more of it is latency
            if has_lapsed and 1 / CHANGED_RATIO < ratio < CHANGED_RATIO:
                patience = min(2 * old.patience_seconds, LAST_PATIENCE_SECONDS)
                new = replace(new, patience_seconds=patience)
            elif 1 / SAME_RATIO < ratio < SAME_RATIO:
                self._sets[key] = replace(old, at_seconds=now_seconds)
                return False
        self._sets[key] = new
        self._forget_what_contradicts(new)
        if len(self._sets) > MAX_SETS:
            del self._sets[self.facts[0].nodes]
        return True

    def costs(self, now_seconds: float) -> LinkCosts:
        """What the links cost, by what counts now.

        The same until a set is measured, or one of them lapses: who asks for each plan of a queue
        has it at once, however many sets there are.
        """
        if self._costs is not None:
            since_seconds, costs = self._costs
            if since_seconds <= now_seconds < costs.until_seconds:
                return costs
        found = self._counted(now_seconds)
        self._costs = now_seconds, found
        return found

    def _counted(self, now_seconds: float) -> LinkCosts:
        least = self._least()
        until: dict[str, float] = {}
        for each in self._sets.values():
            # By what contradicts: else a node whose fastest set has lapsed is not known any more.
            slow = each.seconds_per_byte / CHANGED_RATIO
            to_blame = [name for name in each.nodes if least[name] >= slow]
            for place, node in enumerate(to_blame, 1):  # it is tried again, one after the other
                end = each.at_seconds + each.patience_seconds * place / len(to_blame)
                until[node] = max(until.get(node, end), end)
        counted = {node: end for node, end in until.items() if now_seconds < end}
        by_node = {node: _rounded(least[node]) for node in counted}
        lapses = min(counted.values(), default=math.inf)
        is_known = len(by_node) >= FEWEST_NODES
        usual = _rounded(median(by_node.values())) if is_known else 0.0
        return LinkCosts(by_node, usual, lapses)

    def _least(self) -> dict[str, float]:
        """Node to the cost of the fastest set that it was in."""
        least: dict[str, float] = {}
        for each in self._sets.values():
            for node in each.nodes:
                least[node] = min(least.get(node, math.inf), each.seconds_per_byte)
        return least

    def _forget_what_contradicts(self, new: MeasuredSet) -> None:
        """Forget what cannot be any more, as this has been measured."""
        least = self._least()
        if _is_unexplained(new, least):  # each of its nodes was in a fast set: one has changed
            for key in [k for k in self._sets if k != new.nodes and set(k) & set(new.nodes)]:
                del self._sets[key]
        for each in [each for each in self._sets.values() if _is_unexplained(each, least)]:
            if each is not new:
                self._sets.pop(each.nodes, None)


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """What links cost at a time.

    Attributes:
        by_node: Node to seconds per byte of what a step reduces; those that were measured.
        usual: Of the others: what the median of those costs, or nothing as long as they are few.
        until_seconds: When one of them lapses, on the queue's clock.
    """

    by_node: Mapping[str, float]
    usual: float = 0.0
    until_seconds: float = math.inf

    def of(self, node: str) -> float:
        """Of a node; 0: not known."""
        return self.by_node.get(node, self.usual)

    def bytes_per_second(self, node: str) -> float | None:
        """Bus bandwidth of a node's link; None: not measured, or it has lapsed."""
        return 1.0 / self.by_node[node] if node in self.by_node else None


def _is_unexplained(measured: MeasuredSet, least: Mapping[str, float]) -> bool:
    """Whether all nodes of a slow set were in faster ones."""
    slow = measured.seconds_per_byte / CHANGED_RATIO
    return all(least[node] < slow for node in measured.nodes)


def _rounded(seconds: float) -> float:
    steps = round(math.log2(seconds) * STEPS_PER_DOUBLING)
    return float(2.0 ** (steps / STEPS_PER_DOUBLING))
