"""Which of some replicas that differ is right, and whose differ from it by more than rounding.

Processors of unlike arithmetic, such as a GPU and a CPU, round the same update differently in its
last digits. As all of them apply the same gradients, that adds up as slowly as rounding does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.recovery.replica import Sketch

MAX_NAMED = 3
"""Entries that are named; the others are counted."""

ROUNDING = 3.0
"""Times the square root of the number format's epsilon: half of the digits, 1e-3 for float32. What
rounds its last digit in 1000 steps has gone some 30 epsilon, 4e-6."""


class Described(msgspec.Struct, frozen=True):
    """One member's replica.

    Attributes:
        worker: Who it is.
        arithmetic: What its rounding depends on: members of one arithmetic hold the same bits.
        digest: Of the whole replica.
        entries: The digest of each entry, by its place.
        sketches: Of the entries that are numbers.
    """

    worker: WorkerId
    arithmetic: str
    digest: str
    entries: dict[str, str]
    sketches: dict[str, list[Sketch]]


class ReplicaComparison:
    """Replicas that should be equal, and are not.

    Args:
        members: Whose they are, in rank order.
    """

    def __init__(self, members: Sequence[Described]) -> None:
        self._members = members

    @property
    def right(self) -> str | None:
        """The digest that all are to have; None: nobody can tell.

        It is what more members hold than anything else. Where two states are held by as many, and
        members of unlike arithmetic differ by rounding only, it is what most of one arithmetic
        hold.
        """
        found = majority(member.digest for member in self._members)
        return found or self._of_one_arithmetic()

    def wrong(self, right: str) -> list[Described]:
        """Members whose replicas differ by more than the rounding of another arithmetic."""
        holders = [member for member in self._members if member.digest == right]
        alike = {member.arithmetic for member in holders}
        return [
            member
            for member in self._members
            if member.digest != right
            and (member.arithmetic in alike or not is_rounding(holders[0], member))
        ]

    def in_words(self, right: str | None) -> str:
        """Whose replicas differ, and in what.

        Args:
            right: The digest of the state that is right; None if that cannot be told.
        """
        wrong = [] if right is None else self.wrong(right)
        entries = [member.entries for member in self._members]
        places = dict.fromkeys(place for each in entries for place in each)
        unequal = [place for place in places if len({each.get(place) for each in entries}) > 1]
        told = ", ".join(unequal[:MAX_NAMED])
        if len(unequal) > MAX_NAMED:
            told += f" and {len(unequal) - MAX_NAMED} more"
        named = ", ".join(str(member.worker) for member in wrong or self._members)
        if len(wrong) == 1:
            return f"the replica of {named} differs in {told}"
        return f"the replicas of {named} differ in {told}"

    def _of_one_arithmetic(self) -> str | None:
        groups: dict[str, list[Described]] = {}
        for member in self._members:
            groups.setdefault(member.arithmetic, []).append(member)
        votes = {name: majority(m.digest for m in found) for name, found in groups.items()}
        right = votes[max(groups, key=lambda name: len(groups[name]))]
        if len(groups) == 1 or right is None or None in votes.values():
            return None
        first = next(member for member in self._members if member.digest == right)
        voted = [member for member in self._members if member.digest in votes.values()]
        return right if all(is_rounding(first, member) for member in voted) else None


def majority(digests: Iterable[str]) -> str | None:
    """What more members hold than anything else; None: two states are held by as many."""
    ranked = Counter(digests).most_common(2)
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        return None
    return ranked[0][0]


def is_rounding(one: Described, other: Described) -> bool:
    """Whether two replicas differ in no more than half of the digits of their numbers."""
    if one.entries.keys() != other.entries.keys():
        return False
    return all(
        is_near(one.sketches.get(place, []), other.sketches.get(place, []))
        for place, digest in one.entries.items()
        if digest != other.entries[place]
    )


def is_near(one: Sequence[Sketch], other: Sequence[Sketch]) -> bool:
    """Whether numbers that differ do so in no more than half of their digits.

    Args:
        one: Sketches of all tensors and numbers of an entry; none: there are no numbers in it.
        other: Those of another replica.
    """
    if not one or len(one) != len(other):
        return False
    for mine, theirs in zip(one, other, strict=True):
        squares = [(a - b) ** 2 for a, b in zip(mine.sums, theirs.sums, strict=True)]
        difference = max(abs(mine.norm - theirs.norm), (sum(squares) / len(squares)) ** 0.5)
        limit = ROUNDING * mine.eps**0.5 * max(mine.norm, theirs.norm)
        if mine.form != theirs.form or not difference <= limit:
            return False
    return True
