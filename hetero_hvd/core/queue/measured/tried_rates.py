"""How fast a job is on a set of devices by what a trial has measured of their nodes.

A set that the trial has tells its own speed. Of another one the formula of `set_rate` says how many
times as fast it is as the largest part of it that the trial has: with other devices, too, or with
some of a node only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetero_hvd.core.queue.measured.measured_trial import MeasuredTrial

Counts = tuple[int, ...]
Classes = frozenset[int]


class TriedRates:
    """Of one job.

    Args:
        trial: What was measured.
        nodes: Of each class of devices the one that all of it are in, or nothing.
        scale: What one unit of the rates here is in samples per second, > 0.

    Attributes:
        sets: Classes of the sets that it has, the fastest first.
    """

    def __init__(self, trial: MeasuredTrial, nodes: Sequence[str], scale: float) -> None:
        self._whole = tuple(trial.workers.get(node, 0) for node in nodes)
        place = {node: index for index, node in enumerate(nodes) if node}
        self._rates = {
            frozenset(place[node] for node in names): each.samples_per_second / scale
            for names, each in trial.speeds.items()
            if names <= place.keys()
        }
        self._ratios: dict[Classes, float] = {}
        self.sets = sorted(self._rates, key=self._rates.__getitem__, reverse=True)

    def rate(
        self, given: Sequence[int], by_formula: float, formula: Callable[[Counts], float]
    ) -> float:
        """What the job does on so many devices of each class.

        Args:
            given: So many.
            by_formula: Their rate by the formula.
            formula: Gives the same of other numbers.
        """
        tried = frozenset(i for i, number in enumerate(given) if number and self._whole[i])
        if tried not in self._ratios:
            self._ratios[tried] = self._ratio(tried, formula)
        return by_formula * self._ratios[tried]

    def _ratio(self, tried: Classes, formula: Callable[[Counts], float]) -> float:
        """Of what was measured to the formula; 1: of no part of it was anything measured."""
        parts = [each for each in self.sets if each <= tried]
        if not parts:
            return 1.0
        part = max(parts, key=len)  # of equal ones the fastest
        whole = tuple(number if i in part else 0 for i, number in enumerate(self._whole))
        return self._rates[part] / formula(whole)
