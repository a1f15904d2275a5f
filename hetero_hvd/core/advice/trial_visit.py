"""What a trial knows of a placement, and a placement while it is measured."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

from hetero_hvd.core.advice.predicted import Nodes
from hetero_hvd.core.membership.set_aside import counts_in_full
from hetero_hvd.core.step_table import StepTable

WARM_UP = 2
"""Exchanges of a new membership that do not count, beside the first one: its shares settle."""

MIN_EXCHANGES = 4
"""In a visit, however many steps they have: so that one loaded round of six leaves an interval."""


@dataclass(kw_only=True)
class TriedSet:
    """What is known of a set of nodes; with a verdict it is not measured any more.

    Attributes:
        exchanges: Round to the samples per second of each exchange.
        is_left: Whether it was given up before it was compared; measured it may have been.
    """

    nodes: Nodes
    predicted: tuple[float, float] = (math.nan, math.nan)
    exchanges: dict[int, list[float]] = field(default_factory=dict)
    exposed_seconds: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_void: int = 0
    verdict: str = ""
    is_left: bool = False

    @property
    def speeds(self) -> dict[int, float]:
        """Round to samples per second: the median, which one loaded exchange does not change."""
        return {key: median(values) for key, values in self.exchanges.items()}

    def leave(self, why: str) -> None:
        """Give it up."""
        self.verdict = why
        self.is_left = True

    def __str__(self) -> str:
        return ", ".join(sorted(self.nodes))


@dataclass(kw_only=True)
class Visit:
    """A placement while it is measured."""

    placement: TriedSet
    since_seconds: float
    measured_at_seconds: float = math.nan
    rendezvous_id: int = -1
    num_seen: int = 0
    tables: list[StepTable] = field(default_factory=list)

    def take(self, table: StepTable, num_steps: int) -> bool:
        """Count a table; whether it was the last one that is needed for so many steps."""
        if table.joined.rendezvous_id != self.rendezvous_id:
            self.rendezvous_id = table.joined.rendezvous_id
            self.num_seen = 0
            self.tables.clear()
        if not counts_in_full(table):
            return False
        self.num_seen += 1
        if self.num_seen > WARM_UP:
            self.tables.append(table)
        steps = sum(each.num_steps for each in self.tables)
        return len(self.tables) >= MIN_EXCHANGES and steps >= num_steps


def median_of(values: Collection[float]) -> float:
    """NaN of none."""
    return median(values) if values else math.nan


def shown_speed(placement: TriedSet) -> float:
    """For the order: as measured, or else as predicted at most."""
    speed = median_of(placement.speeds.values())
    speed = placement.predicted[1] if math.isnan(speed) else speed
    return 0.0 if math.isnan(speed) else speed
