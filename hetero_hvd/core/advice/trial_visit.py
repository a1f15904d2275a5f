"""What a trial knows of a placement, and a placement while it is measured."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import fmean

from hetero_hvd.core.advice.predicted import Nodes
from hetero_hvd.core.step_table import StepTable


@dataclass(kw_only=True)
class TriedSet:
    """What is known of a set of nodes; with a verdict it is not measured any more.

    Attributes:
        is_left: Whether it was given up before it was compared; measured it may have been.
    """

    nodes: Nodes
    predicted: tuple[float, float] = (math.nan, math.nan)
    speeds: dict[int, float] = field(default_factory=dict)
    first_range: tuple[float, float] = (math.nan, math.nan)
    exposed_seconds: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_void: int = 0
    verdict: str = ""
    is_left: bool = False

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


def mean_of(values: Collection[float]) -> float:
    """NaN of none."""
    return fmean(values) if values else math.nan


def shown_speed(placement: TriedSet) -> float:
    """For the order: as measured, or else as predicted at most."""
    speed = mean_of(placement.speeds.values())
    speed = placement.predicted[1] if math.isnan(speed) else speed
    return 0.0 if math.isnan(speed) else speed
