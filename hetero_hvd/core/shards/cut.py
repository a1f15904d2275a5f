"""Cuts a state of many blocks into parts by the workers' rooms, each part on two workers.

Workers are laid end to end on a line as long as all copies together, which is folded to the length
of the state: no worker meets itself as long as none holds more than the whole of it (McNaughton,
Scheduling with Deadlines and Loss Functions, Management Science 1959). Where workers hold something
already, which of it each keeps is a flow of least cost from the blocks to the workers (Ford and
Fulkerson, Flows in Networks, 1962), so that as few blocks move as can be.

All is decided from numbers that every worker has, so that all find the same without a word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from hetero_hvd.errors import UserError

COPIES = 2
"""So many workers hold each part: when one is lost the other goes on."""


class Span(NamedTuple):
    """Blocks `start` to `stop`, without that."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """In blocks."""
        return self.stop - self.start


Holdings = Mapping[int, Sequence[Span]]
"""Rank to the spans that it holds, disjoint."""


class Shard(NamedTuple):
    """Blocks that the same workers hold.

    Attributes:
        span: Which.
        holders: Ranks, distinct, in order.
    """

    span: Span
    holders: tuple[int, ...]


class Move(NamedTuple):
    """Blocks that a worker is to get.

    Attributes:
        span: Which.
        giver: The rank that sends them.
        taker: The rank that gets them.
    """

    span: Span
    giver: int
    taker: int


class NoRoom(UserError):  # noqa: N818 - a fact about the workers
    """The workers together have less room than the state needs."""


def loads(num_blocks: int, rooms: Sequence[int], copies: int = COPIES) -> list[int]:
    """How many blocks each worker is to hold: in proportion to its room, and never above it.

    No worker holds a block twice. What one cannot take for that goes to the others, in proportion
    again.

    Args:
        num_blocks: Of the state, >= 0.
        rooms: What each rank has room for, in blocks, >= 0.
        copies: Of each block, 1 to the number of workers.

    Returns:
        Blocks of each rank; their sum is `copies * num_blocks`.

    Raises:
        NoRoom: All rooms together are too small.
    """
    limits = [min(num_blocks, room) for room in rooms]
    wanted = copies * num_blocks
    if sum(limits) < wanted:
        raise NoRoom(f"room for {sum(limits)} of {wanted} blocks")
    found = [0] * len(rooms)
    open_ranks = [rank for rank, room in enumerate(rooms) if room]
    while open_ranks:
        left = wanted - sum(found)
        total = sum(rooms[rank] for rank in open_ranks)
        full = [rank for rank in open_ranks if rooms[rank] * left >= limits[rank] * total]
        if not full:
            break
        for rank in full:
            found[rank] = limits[rank]
        open_ranks = [rank for rank in open_ranks if rank not in full]
    left = wanted - sum(found)
    total = sum(rooms[rank] for rank in open_ranks)
    passed = 0
    for rank in open_ranks:  # the rounding of one is made up for by the next
        before = passed * left // total
        passed += rooms[rank]
        found[rank] = passed * left // total - before
    return _within(found, limits)


def _within(found: list[int], limits: Sequence[int]) -> list[int]:
    """Rounding may have put a block above a limit: another worker has room for it."""
    for rank, limit in enumerate(limits):
        while found[rank] > limit:
            other = next(n for n, most in enumerate(limits) if found[n] < most)
            found[rank] -= 1
            found[other] += 1
    return found


def alone(num_blocks: int, rooms: Sequence[int], held: Sequence[int]) -> list[int] | None:
    """The loads where one worker holds everything, as there is no room for two copies.

    Args:
        num_blocks: Of the state, >= 0.
        rooms: What each rank has room for, in blocks.
        held: What each holds now, in blocks: it is the one that holds most.

    Returns:
        Blocks of each rank; None: no one has room for everything.
    """
    able = [rank for rank, room in enumerate(rooms) if room >= num_blocks]
    if not able:
        return None
    one = max(able, key=lambda rank: (held[rank], -rank))
    return [num_blocks * (rank == one) for rank in range(len(rooms))]


def lost(num_blocks: int, held: Holdings) -> list[Span]:
    """The blocks that nobody holds."""
    return [span for span, holders in _atoms(num_blocks, held) if not holders]


def as_held(num_blocks: int, held: Holdings) -> list[Shard]:
    """The parts as they are held now, whoever and however many hold each."""
    return [Shard(span, holders) for span, holders in _atoms(num_blocks, held)]


def cut(num_blocks: int, wanted: Sequence[int], held: Holdings) -> list[Shard]:
    """Decide who holds what, so that as few blocks move as can be.

    Args:
        num_blocks: Of the state, >= 0.
        wanted: What each rank is to hold, see `loads`.
        held: What each holds now; nothing at the start.

    Returns:
        Parts that cover the state in order; each rank holds just so many blocks as it is to.
    """
    if not num_blocks:
        return []
    copies = sum(wanted) // num_blocks
    atoms = _atoms(num_blocks, held)
    flow = _Flow([span.length for span, _ in atoms], wanted)
    for number, (span, holders) in enumerate(atoms):
        flow.needs[number] = copies * span.length
        flow.keepers[number] = frozenset(holders)
    flow.run()
    parts: list[Shard] = []
    for (span, _), amounts in zip(atoms, flow.amounts, strict=True):
        parts += _laid(span, amounts, copies)
    return _joined(parts)


def moves(parts: Iterable[Shard], held: Holdings) -> list[Move]:
    """What is to be sent so that all hold what they should; givers take turns by what they gave.

    Args:
        parts: As they are to be.
        held: What each rank holds; what nobody holds is not sent.
    """
    given = dict.fromkeys(held, 0)
    found = []
    for span, holders in parts:
        for piece, owners in _atoms_within(span, held):
            for taker in holders:
                if taker in owners or not owners:
                    continue
                giver = min(owners, key=lambda rank: (given[rank], rank))
                given[giver] += piece.length
                found.append(Move(piece, giver, taker))
    return found


def rescues(
    num_blocks: int, rooms: Sequence[int], held: Holdings, leaving: Collection[int]
) -> list[Move] | None:
    """What is to be sent so that nothing is lost when some ranks leave.

    Each block that only they have goes to one who stays, as the parts will be cut then.

    Args:
        num_blocks: Of the state.
        rooms: What each rank has room for, in blocks.
        held: What each rank holds.
        leaving: Ranks.

    Returns:
        None: those who stay have too little room, even for one copy on one of them, or nobody
            stays.
    """
    own = [0 if rank in leaving else room for rank, room in enumerate(rooms)]
    copies = min(COPIES, len(rooms) - len(set(leaving)))
    if not copies:
        return None
    wanted: list[int] | None
    try:
        wanted = loads(num_blocks, own, copies)
    except NoRoom:
        lengths = [sum(span.length for span in held.get(rank, ())) for rank in range(len(own))]
        wanted = alone(num_blocks, own, lengths)
    if wanted is None:
        return None
    parts = cut(num_blocks, wanted, held)
    left = [(span, owners) for span, owners in _atoms(num_blocks, held) if owners]
    return [
        Move(common, owners[0], takers[0])
        for span, owners in left
        if set(owners) <= set(leaving)
        for part, takers in parts
        for common in [Span(max(part.start, span.start), min(part.stop, span.stop))]
        if common.length > 0
    ]


def contributors(parts: Iterable[Shard]) -> list[tuple[Span, int]]:
    """Which holder of each part tells the others what has become of it; in equal amounts."""
    told: dict[int, int] = {}
    found = []
    for span, holders in parts:
        rank = min(holders, key=lambda rank: (told.get(rank, 0), rank))
        told[rank] = told.get(rank, 0) + span.length
        found.append((span, rank))
    return found


def spans_of(parts: Iterable[Shard], rank: int) -> list[Span]:
    """What a rank holds, neighbours as one."""
    found: list[Span] = []
    for span, holders in parts:
        if rank not in holders:
            continue
        if found and found[-1].stop == span.start:
            found[-1] = Span(found[-1].start, span.stop)
        else:
            found.append(span)
    return found


def _atoms(num_blocks: int, held: Holdings) -> list[tuple[Span, tuple[int, ...]]]:
    """The longest spans that the same ranks hold, with these."""
    return _atoms_within(Span(0, num_blocks), held)


def _atoms_within(whole: Span, held: Holdings) -> list[tuple[Span, tuple[int, ...]]]:
    edges = {whole.start, whole.stop}
    for spans in held.values():
        edges |= {edge for span in spans for edge in span if whole.start < edge < whole.stop}
    found: list[tuple[Span, tuple[int, ...]]] = []
    for start, stop in pairwise(sorted(edges)):
        holders = tuple(
            sorted(
                rank
                for rank, spans in held.items()
                if any(span.start <= start and stop <= span.stop for span in spans)
            )
        )
        if found and found[-1][1] == holders:
            start = found.pop()[0].start  # noqa: PLW2901 - it goes on
        found.append((Span(start, stop), holders))
    return found


def _laid(span: Span, amounts: Mapping[int, int], copies: int) -> list[Shard]:
    """Who holds which blocks of a span, of which each rank holds so many: laid round and round."""
    held: dict[int, list[Span]] = {}
    at = 0
    for rank, amount in sorted(amounts.items()):
        stop = at + amount
        while at < stop:
            turn = at // span.length
            end = min(stop, (turn + 1) * span.length)
            first = span.start - turn * span.length
            held.setdefault(rank, []).append(Span(first + at, first + end))
            at = end
    parts = [Shard(*each) for each in _atoms_within(span, held)]
    assert all(len(part.holders) == copies for part in parts)  # noqa: S101 - the fold's law
    return parts


def _joined(parts: Iterable[Shard]) -> list[Shard]:
    found: list[Shard] = []
    for part in parts:
        if found and found[-1].holders == part.holders:
            found[-1] = Shard(Span(found[-1].span.start, part.span.stop), part.holders)
        else:
            found.append(part)
    return found


class _Flow:
    """From spans to ranks: as much as each wants, at the cost of what was not held there before.

    Args:
        lengths: Of the spans; a rank takes of each at most this.
        wanted: Of each rank.

    Attributes:
        needs: What is still to be placed, of each span.
        keepers: The ranks that hold each span now.
        amounts: For each span, rank to what it takes of it.
    """

    def __init__(self, lengths: Sequence[int], wanted: Sequence[int]) -> None:
        self._lengths = lengths
        self._rooms = list(wanted)
        self.needs = [0] * len(lengths)
        self.keepers: list[frozenset[int]] = [frozenset()] * len(lengths)
        self.amounts: list[dict[int, int]] = [{} for _ in lengths]

    def run(self) -> None:
        """Place everything: by the cheapest way that there is, again and again."""
        while any(self.needs):
            way = self._cheapest_way()
            first, last = way[0], way[-1]
            most = [self.needs[first[0]], self._rooms[last[1]]]
            most += [self._lengths[span] - self._taken(span, rank) for span, rank in way]
            most += [self._taken(way[n + 1][0], way[n][1]) for n in range(len(way) - 1)]
            amount = min(most)
            for number, (span, rank) in enumerate(way):
                self._add(span, rank, amount)
                if number + 1 < len(way):
                    self._add(way[number + 1][0], rank, -amount)
            self.needs[first[0]] -= amount
            self._rooms[last[1]] -= amount

    def _taken(self, span: int, rank: int) -> int:
        return self.amounts[span].get(rank, 0)

    def _add(self, span: int, rank: int, amount: int) -> None:
        now = self._taken(span, rank) + amount
        self.amounts[span][rank] = now
        if not now:
            del self.amounts[span][rank]

    def _cost(self, span: int, rank: int) -> int:
        return int(rank not in self.keepers[span])

    def _cheapest_way(self) -> list[tuple[int, int]]:
        """(span, rank), ...: the span goes to the rank, which gives the next span away for it.

        By labels that are corrected until none gets cheaper (Bellman, 1958; Moore, 1959).
        """
        cost_of_span = {n: 0 for n, need in enumerate(self.needs) if need}
        cost_of_rank: dict[int, int] = {}
        came_from: dict[int, int] = {}  # rank to the span that would come to it
        gave: dict[int, int] = {}  # span to the rank that would give it away
        queue = deque(cost_of_span)
        while queue:
            span = queue.popleft()
            for rank in range(len(self._rooms)):
                if self._taken(span, rank) >= self._lengths[span]:
                    continue
                cost = cost_of_span[span] + self._cost(span, rank)
                if cost >= cost_of_rank.get(rank, 1 << 62):
                    continue
                cost_of_rank[rank] = cost
                came_from[rank] = span
                for other, amounts in enumerate(self.amounts):
                    if other == span or not amounts.get(rank):
                        continue
                    then = cost - self._cost(other, rank)
                    if then < cost_of_span.get(other, 1 << 62):
                        cost_of_span[other] = then
                        gave[other] = rank
                        queue.append(other)
        ends = [rank for rank in cost_of_rank if self._rooms[rank]]
        rank = min(ends, key=lambda rank: (cost_of_rank[rank], rank))
        way = []
        while True:
            span = came_from[rank]
            way.append((span, rank))
            if span not in gave:
                return way[::-1]
            rank = gave[span]
