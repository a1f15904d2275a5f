"""What the members of a rendezvous tell of the parts that they hold, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hetero_hvd.core.micro_batch.micro_batch_limit import evenly
from hetero_hvd.core.shards.cut import COPIES, Move, NoRoom, Span, lost
from hetero_hvd.core.shards.rooms import StateRoom, shared
from hetero_hvd.errors import TransientError


class HeldShards(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells of its parts when it enters a rendezvous.

    Attributes:
        basis: From which state the updates are counted.
        updates: That its parts have had.
        spans: Of blocks that it holds; all of them where it has a whole state still.
        is_whole: Whether that is so.
        is_cut: Whether it takes part in updates with parts; None: nobody has decided that yet.
        room: What its memory has for parts.
        smallest: Samples of the smallest micro-batch that it can do with, >= 1.
        largest: Samples of the largest one that it takes; 0: all of its share.
        is_torn: Whether its parts have had an update that its parameters do not show completely.
    """

    basis: int = 0
    updates: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    is_whole: bool = False
    is_cut: bool | None = True
    room: StateRoom = StateRoom()
    smallest: int = 1
    largest: int = 0
    is_torn: bool = False

    @property
    def version(self) -> tuple[int, int]:
        """Parts of one version belong together."""
        return self.basis, self.updates

    def micro_batch(self, share: int) -> int:
        """Samples at a time in which it takes a share of the batch, >= 1."""
        return max(self.smallest, evenly(share, self.largest)) if share else self.smallest


class ShardMember(msgspec.Struct, frozen=True):
    """A member of a rendezvous, as far as parts are concerned.

    Attributes:
        applied_steps: Of its parameters; -1: it has no whole state.
        is_applying: Whether it waits in the midst of an update for the others.
        held: Its parts.
        name: Of the worker.
    """

    applied_steps: int
    is_applying: bool
    held: HeldShards
    name: str = ""

    @property
    def is_unmet(self) -> bool:
        """Whether it has all of a state because it has met nobody yet, after a start or a load."""
        return self.held.is_whole


class PartsLost(TransientError):  # noqa: N818 - control flow
    """All who held some part are gone; says how much that is."""


def newest_version(members: Sequence[ShardMember]) -> tuple[int, int] | None:
    """The version of the newest whole state; None: nobody's parameters are whole."""
    alive = [m for m in members if m.applied_steps >= 0 and not m.held.is_torn]
    if alive:
        return max(alive, key=lambda member: member.applied_steps).held.version
    if any(m.held.is_torn for m in members):
        return None
    return members[0].held.version


def holdings(members: Sequence[ShardMember], version: tuple[int, int]) -> dict[int, list[Span]]:
    """Rank to what it holds of a version."""
    return {
        rank: [Span(*span) for span in member.held.spans]
        for rank, member in enumerate(members)
        if member.held.version == version and member.held.spans
    }


class HalfDone(NamedTuple):
    """An update in the midst of which some members wait.

    Attributes:
        waiting: Their ranks: they have updated their parts, and their parameters are incomplete.
        behind: Ranks of those who have not got its sums.
        holders: What all of these hold.
    """

    waiting: list[int]
    behind: list[int]
    holders: dict[int, list[Span]]


def half_done(members: Sequence[ShardMember]) -> HalfDone | None:
    """The update that some members are in the midst of; None: another one is through with it.

    Who comes just now may have begun where the others did: it was in no step of theirs.
    """
    waiting = [rank for rank, member in enumerate(members) if member.is_applying]
    first = members[waiting[0]]
    if any(member.applied_steps > first.applied_steps for member in members):
        return None
    now, before = first.held.version, (first.held.basis, first.held.updates - 1)
    met = [rank for rank, member in enumerate(members) if not member.is_unmet]
    holders = holdings(members, now) | holdings(members, before)
    return HalfDone(
        waiting=waiting,
        behind=[rank for rank in met if members[rank].held.version == before],
        holders={rank: spans for rank, spans in holders.items() if rank in met},
    )


def rooms_of(members: Sequence[ShardMember], num_blocks: int, block_bytes: float) -> list[int]:
    """Blocks that each has room for at most; all of them where it is the work that is divided."""
    return [member.held.room.most_blocks if block_bytes else num_blocks for member in members]


def check_held(members: Sequence[ShardMember], num_blocks: int) -> None:
    """See that each part has a holder among the members of a new rendezvous.

    Raises:
        PartsLost: One has none; says how much is lost.
    """
    truth = newest_version(members)
    newest = max(each.held.version for each in members) if truth is None else truth
    gone = sum(span.length for span in lost(num_blocks, holdings(members, newest)))
    if gone:
        raise PartsLost(
            f"all workers that held {gone / num_blocks:.0%} of the optimizer's state are lost"
        )
    if truth is None:
        raise PartsLost(
            "all workers are lost that had the gradients of the next one, of which others have "
            "a part"
        )


class PartsShort(TransientError):  # noqa: N818 - control flow
    """The members' memories do not hold the state; says what there is and what it takes."""


class PartLoads(msgspec.Struct, frozen=True):
    """How much of the state each member is to hold.

    Attributes:
        loads: In blocks, by rank.
        rooms: What each has for it, in blocks, beside its share of the batch.
        samples: Of each, at a time.
    """

    loads: tuple[int, ...]
    rooms: tuple[int, ...]
    samples: tuple[int, ...]

    def in_words(self, members: Sequence[ShardMember], block_bytes: float) -> str:
        """Who holds how much of what room, beside what."""
        found = []
        for member, load, room, samples in zip(
            members, self.loads, self.rooms, self.samples, strict=True
        ):
            holds = f"{member.name} {mebibytes(load * block_bytes)}"
            if load > room:
                found.append(f"{holds}, so that it takes fewer than {samples} samples at a time")
            else:
                has = mebibytes(room * block_bytes)
                found.append(f"{holds} of {has} beside {samples} samples at a time")
        return ", ".join(found)


def placed(
    members: Sequence[ShardMember],
    shares: Sequence[int],
    num_blocks: int,
    block_bytes: float,
    held: Mapping[int, Sequence[Span]],
) -> PartLoads:
    """How many blocks each member is to hold beside its share of the batch.

    Args:
        members: In rank order.
        shares: Their samples in each step.
        num_blocks: Of the state.
        block_bytes: Of its state; 0: nothing but the work is divided.
        held: What each rank holds that is of use.

    Raises:
        PartsShort: They have too little room together.
    """
    samples = tuple(m.held.micro_batch(share) for m, share in zip(members, shares, strict=True))
    loads = [sum(span.length for span in held.get(rank, ())) for rank in range(len(members))]
    most = rooms_of(members, num_blocks, block_bytes)
    rooms = tuple(
        member.held.room.beside(number) if block_bytes else num_blocks
        for member, number in zip(members, samples, strict=True)
    )
    try:
        return PartLoads(shared(num_blocks, rooms, most, loads), rooms, samples)
    except NoRoom as error:
        copies = min(COPIES, len(members))
        have = block_bytes * sum(min(num_blocks, room) for room in most)
        raise PartsShort(
            f"{len(members)} workers have room for {mebibytes(have)} of the optimizer's state, "
            f"which takes {mebibytes(block_bytes * copies * num_blocks)} as each part is on two of "
            "them"
        ) from error


def mebibytes(num_bytes: float) -> str:
    """In words."""
    return f"{num_bytes / 2**20:.1f} MiB"


def in_pieces(move: Move, num_blocks: int) -> list[Move]:
    """A move in several, each of so many blocks at most."""
    starts = range(move.span.start, move.span.stop, num_blocks)
    return [
        Move(Span(start, min(start + num_blocks, move.span.stop)), move.giver, move.taker)
        for start in starts
    ]


def packs(told: Sequence[tuple[Span, int]], num_blocks: int) -> list[list[tuple[Span, int]]]:
    """Who tells what in each operation."""
    found: list[list[tuple[Span, int]]] = []
    room = 0
    for span, rank in told:
        start = span.start
        while start < span.stop:
            if not room:
                found.append([])
                room = num_blocks
            stop = min(span.stop, start + room)
            found[-1].append((Span(start, stop), rank))
            room -= stop - start
            start = stop
    return found
