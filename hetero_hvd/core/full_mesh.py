"""Who can train together where not all nodes reach each other: Gloo connects all with all."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

MAX_LOOKS = 2000
"""Choices that are looked at for one group of nodes; then the quick rule decides about the rest."""

Node = TypeVar("Node", bound=Hashable)

Conflicts = dict[Node, set[Node]]
"""Node to those with which it is not connected; both name each other."""


def left_out(sizes: Mapping[Node, int], broken: Iterable[tuple[Node, Node]]) -> set[Node]:
    """The nodes without which all others reach each other, and as many workers as can be train.

    Of two choices with equally many workers, the one that keeps the node named first counts. Nodes
    that nothing is wrong with are always kept. The choice is exact up to `MAX_LOOKS` (any number of
    nodes whose network is cut in two is far below that); beyond, nodes with the most broken routes
    go first.

    Args:
        sizes: Node to its number of workers, >= 1, in the order of their importance.
        broken: Pairs of nodes that cannot be connected, in any order; of `sizes`.
    """
    conflicts: Conflicts[Node] = {}
    for one, other in broken:
        if one != other:
            conflicts.setdefault(one, set()).add(other)
            conflicts.setdefault(other, set()).add(one)
    found: set[Node] = set()
    for group in _groups(sizes, conflicts):
        found |= _Search(sizes, MAX_LOOKS).best({node: conflicts[node] for node in group})
    return found


def _groups(sizes: Mapping[Node, int], conflicts: Conflicts[Node]) -> Iterable[list[Node]]:
    """Nodes whose fates depend on each other, each group by itself."""
    seen: set[Node] = set()
    for first in sizes:
        if first in seen or first not in conflicts:
            continue
        group, waiting = [], [first]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                group.append(node)
                waiting += conflicts[node]
        yield group


class _Search(Generic[Node]):
    """Looks at all choices that may be the best one, as long as there are not too many."""

    def __init__(self, sizes: Mapping[Node, int], max_looks: int) -> None:
        self._sizes = sizes
        self._place = {node: place for place, node in enumerate(sizes)}
        self._looks_left = max_looks

    def best(self, conflicts: Conflicts[Node]) -> set[Node]:
        """Who is left out: a node in conflict with others, or all of these others."""
        conflicts = {node: others for node, others in conflicts.items() if others}
        if not conflicts:
            return set()
        self._looks_left -= 1
        node = max(conflicts, key=lambda name: (len(conflicts[name]), -self._place[name]))
        without = {node} | self.best(_less(conflicts, {node}))
        if self._looks_left <= 0:
            return without
        others = conflicts[node]
        with_it = others | self.best(_less(conflicts, others | {node}))
        return min(with_it, without, key=self._cost)

    def _cost(self, nodes: set[Node]) -> tuple[int, list[int]]:
        """Workers that are lost; then, which choice keeps the nodes that are named first."""
        first_last = sorted((-self._place[node] for node in nodes), reverse=True)
        return sum(self._sizes[node] for node in nodes), first_last


def _less(conflicts: Conflicts[Node], gone: set[Node]) -> Conflicts[Node]:
    return {node: others - gone for node, others in conflicts.items() if node not in gone}
