"""What a trial has measured of sets of nodes, so that a job of its model is placed by that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPlacement:
    """A set of nodes.

    Attributes:
        nodes: Their names, sorted.
        samples_per_second: Of all their workers together, > 0.
        is_measured: Whether it was; else it was predicted by what was measured of others.
    """

    nodes: tuple[str, ...]
    samples_per_second: float
    is_measured: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTrial:
    """A trial, as far as it is of nodes that the cluster has.

    Attributes:
        run: Name of the run in which it was made, for people.
        global_batch_size: Samples per optimizer step, by which it was made.
        at_seconds: When, on the queue's clock.
        workers: Node to how many workers it had.
        placements: What is known of sets of these nodes, each once.
    """

    run: str
    global_batch_size: int
    at_seconds: float
    workers: Mapping[str, int]
    placements: tuple[MeasuredPlacement, ...]

    @property
    def speeds(self) -> dict[frozenset[str], MeasuredPlacement]:
        """Set of nodes to what is known of it."""
        return {frozenset(each.nodes): each for each in self.placements}
