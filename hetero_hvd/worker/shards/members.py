"""What the members of a rendezvous tell of the parts that they hold, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hetero_hvd.core.shards.cut import COPIES, Move, NoRoom, Span, loads
from hetero_hvd.errors import JobError, TransientError


class HeldShards(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells of its parts when it enters a rendezvous.

    Attributes:
        basis: From which state the updates are counted.
        updates: That its parts have had.
        spans: Of blocks that it holds; all of them where it has a whole state still.
        is_whole: Whether that is so.
        room_blocks: Blocks that its memory has room for.
        is_torn: Whether its parts have had an update that its parameters do not show completely.
    """

    basis: int = 0
    updates: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    is_whole: bool = False
    room_blocks: int = 0
    is_torn: bool = False

    @property
    def version(self) -> tuple[int, int]:
        """Parts of one version belong together."""
        return self.basis, self.updates


class ShardMember(msgspec.Struct, frozen=True):
    """A member of a rendezvous, as far as parts are concerned.

    Attributes:
        applied_steps: Of its parameters; -1: it has no whole state.
        is_applying: Whether it waits in the midst of an update for the others.
        held: Its parts.
    """

    applied_steps: int
    is_applying: bool
    held: HeldShards

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


def rooms_of(members: Sequence[ShardMember], num_blocks: int, block_bytes: float) -> list[int]:
    """Blocks that each has room for; see `wanted_loads`."""
    return [member.held.room_blocks if block_bytes else num_blocks for member in members]


def wanted_loads(members: Sequence[ShardMember], num_blocks: int, block_bytes: float) -> list[int]:
    """How many blocks each member is to hold.

    Args:
        members: In rank order.
        num_blocks: Of the state.
        block_bytes: Of its state; 0: nothing but the work is divided.

    Raises:
        JobError: They have too little room together.
    """
    rooms = rooms_of(members, num_blocks, block_bytes)
    copies = min(COPIES, len(members))
    try:
        return loads(num_blocks, rooms, copies)
    except NoRoom as error:
        have = block_bytes * sum(min(num_blocks, room) for room in rooms)
        raise JobError(
            f"shard_optimizer: {len(members)} workers have room for {mebibytes(have)} of the "
            f"optimizer's state, which takes {mebibytes(block_bytes * copies * num_blocks)} as each"
            " part is on two of them: add workers or memory, or train a smaller model"
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
