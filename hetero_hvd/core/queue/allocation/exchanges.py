"""Two jobs exchange a device each while that serves both together more.

The greedy choice gives the fastest device to whom it is worth most, and not to whom the next best
is worth least: a job that is as fast on a slow device should leave the fast one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from hetero_hvd.core.queue.device_classes import ClassTable, JobShare

NO_GAIN = 1e-12
"""Less than this is what rounding leaves, and no reason to move anything."""

ShareValue = Callable[[JobShare, Sequence[int]], float]


def exchange(shares: Iterable[JobShare], table: ClassTable, value: ShareValue) -> None:
    """Let jobs exchange devices.

    Args:
        shares: Of the jobs whose devices may change.
        table: The classes of devices.
        value: What so many devices of each class are worth to a job.
    """
    movable = [_Exchanger(share, table, value) for share in shares]
    groups = table.classes
    pairs = [
        (here, there)
        for here, group in enumerate(groups)
        for there in range(here)
        if group.pool == groups[there].pool
        and (group.kind, group.link_seconds) != (groups[there].kind, groups[there].link_seconds)
    ]
    exchanged = True
    while exchanged:
        exchanged = False
        for here, there in pairs:
            gives = _two_best(movable, here, there)
            takes = _two_best(movable, there, here) if gives else []
            gain, first, second = max(
                (
                    (gain + other, first, second)
                    for gain, first in gives
                    for other, second in takes
                    if first != second
                ),
                default=(0.0, 0, 0),
            )
            if gain > NO_GAIN:
                movable[first].swap(here, there)
                movable[second].swap(there, here)
                exchanged = True


def _two_best(movable: Sequence[_Exchanger], here: int, there: int) -> list[tuple[float, int]]:
    """What a device of another class instead of one serves jobs: gains and places in a list."""
    found = [
        (each.gain(here, there), number)
        for number, each in enumerate(movable)
        if each.given[here] and each.speeds[there]
    ]
    return heapq.nlargest(2, found)


class _Exchanger:
    """A job that may exchange devices; what it would gain is weighed once."""

    def __init__(self, share: JobShare, table: ClassTable, value: ShareValue) -> None:
        self.given = share.given
        self.speeds = share.speeds.speeds
        self._share = share
        self._table = table
        self._value = value
        self._forget()

    def gain(self, here: int, there: int) -> float:
        """What a device of one class serves it instead of one of another that it has."""
        place = here, self._alike[there]
        if place not in self._gains:
            after = list(self.given)
            after[here] -= 1
            after[there] += 1
            gain = self._value(self._share, after) - self._value_now
            self._gains[place] = self._share.urgency * gain
        return self._gains[place]

    def swap(self, here: int, there: int) -> None:
        """Take a device of one class instead of one of another."""
        self._share.swap(here, there)
        self._forget()

    def _forget(self) -> None:
        self._gains: dict[tuple[int, int], float] = {}
        self._value_now = self._value(self._share, self.given)
        self._alike = self._alike_classes()

    def _alike_classes(self) -> list[int]:
        """For each class the first one that is worth as much: on nodes of which it has nothing."""
        share, nodes, kinds = self._share, self._table.nodes, self._table.kinds
        had = zip(nodes, self.given, share.current, strict=True)
        used = {node for node, given, current in had if given or current}
        first: dict[tuple[float, float, str], int] = {}
        return [
            first.setdefault((self.speeds[index], share.speeds.links[index], kinds[index]), index)
            if node and node not in used
            else index
            for index, node in enumerate(nodes)
        ]
