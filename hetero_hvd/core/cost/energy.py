"""Energy of nodes from samples of their meters.

A meter that counts joules is exact between any two samples, however far apart. One that tells watts
alone is integrated, and only where its samples are near enough. What neither covers is a gap, and
is told as such: nothing is made up for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from hetero_hvd.core.cost.presence import Stay

MAX_GAP_SECONDS = 30.0
"""Between two samples of power that are integrated; a meter is read every second or so."""


class EnergySample(NamedTuple):
    """What a meter shows.

    Attributes:
        node: Whose.
        meter: Which of that node: `cpu`, `gpu 0`.
        at_seconds: When, seconds since 1970.
        energy_joules: Its counter; NaN: it has none.
        power_watts: At that time, or the mean of `span_seconds`; NaN: not told.
        span_seconds: For so long before its time it stands, where several were made one.
    """

    node: str
    meter: str
    at_seconds: float
    energy_joules: float = math.nan
    power_watts: float = math.nan
    span_seconds: float = 0.0


class _Piece(NamedTuple):
    """Between two samples of one meter; joules are NaN in a gap."""

    from_seconds: float
    until_seconds: float
    joules: float


_from, _until = attrgetter("from_seconds"), attrgetter("until_seconds")


@dataclass(frozen=True, kw_only=True)
class NodeEnergy:
    """What a node has used in some time.

    Attributes:
        node: Its name.
        joules: As far as it was measured.
        meters: What was measured of it.
        seconds: How long it was there in that time.
        measured_seconds: How much of that all its meters cover.
    """

    node: str
    joules: float
    meters: tuple[str, ...]
    seconds: float
    measured_seconds: float

    @property
    def mean_watts(self) -> float:
        """Of all its meters together; NaN: not measured."""
        return self.joules / self.measured_seconds if self.measured_seconds else math.nan

    @property
    def gap_seconds(self) -> float:
        """How long it was there unmeasured."""
        return max(0.0, self.seconds - self.measured_seconds)


class EnergyMeters:
    """The meters of all nodes.

    Args:
        samples: Of each meter in the order of their times.
    """

    def __init__(self, samples: Iterable[EnergySample]) -> None:
        newest: dict[tuple[str, str], EnergySample] = {}
        self._pieces: dict[str, dict[str, list[_Piece]]] = defaultdict(lambda: defaultdict(list))
        for sample in samples:
            of_node = self._pieces[sample.node]
            before = newest.get((sample.node, sample.meter))
            of_meter = of_node[sample.meter]
            if before is None or sample.at_seconds >= before.at_seconds:
                newest[sample.node, sample.meter] = sample
            if before is not None and sample.at_seconds > before.at_seconds:
                of_meter.extend(_pieces(before, sample))

    def used(
        self,
        stays: Sequence[Stay],
        from_seconds: float = -math.inf,
        until_seconds: float = math.inf,
    ) -> tuple[NodeEnergy, ...]:
        """What the nodes used while they were in the job, by name.

        Args:
            stays: When they were.
            from_seconds: Only from this time on, seconds since 1970.
            until_seconds: Only up to this one.
        """
        return tuple(
            self._of_node(node, stays, from_seconds, until_seconds)
            for node in sorted({stay.node for stay in stays})
        )

    def _of_node(
        self, node: str, stays: Sequence[Stay], from_seconds: float, until_seconds: float
    ) -> NodeEnergy:
        own = [stay for stay in stays if stay.node == node]
        joules, covered = 0.0, math.inf
        for pieces in self._pieces.get(node, {}).values():
            measured = 0.0
            for piece in _within(pieces, from_seconds, until_seconds):
                duration = piece.until_seconds - piece.from_seconds
                begin = max(piece.from_seconds, from_seconds)
                end = min(piece.until_seconds, until_seconds)
                there = sum(stay.seconds_within(begin, end) for stay in own)
                if there and math.isfinite(piece.joules):
                    joules += piece.joules * (there / duration)
                    measured += there
            covered = min(covered, measured)
        return NodeEnergy(
            node=node,
            joules=joules,
            meters=tuple(sorted(self._pieces.get(node, {}))),
            seconds=sum(stay.seconds_within(from_seconds, until_seconds) for stay in own),
            measured_seconds=covered if math.isfinite(covered) else 0.0,
        )


def _within(
    pieces: Sequence[_Piece], from_seconds: float, until_seconds: float
) -> Sequence[_Piece]:
    """Those that have a part of some time; pieces of a meter follow each other."""
    first = bisect_right(pieces, from_seconds, key=_until)
    return pieces[first : bisect_left(pieces, until_seconds, first, key=_from)]


def _pieces(before: EnergySample, after: EnergySample) -> Iterator[_Piece]:
    """What is known of the time between two samples of a meter."""
    counted = after.energy_joules - before.energy_joules
    if counted >= 0:
        yield _Piece(before.at_seconds, after.at_seconds, counted)
        return
    # There is no counter, or it has begun anew: a restart, or it has run over.
    since = max(before.at_seconds, after.at_seconds - after.span_seconds)
    if since > before.at_seconds:
        watts = (before.power_watts + after.power_watts) / 2.0
        is_near = since - before.at_seconds <= MAX_GAP_SECONDS
        joules = watts * (since - before.at_seconds) if is_near else math.nan
        yield _Piece(before.at_seconds, since, joules)
    if after.at_seconds > since:
        yield _Piece(since, after.at_seconds, after.power_watts * (after.at_seconds - since))
