"""How many blocks of a state each worker is to hold beside its share of the batch.

Both want the same bytes: with micro-batches of x samples the passes take m0 + m1 * x (see
`core.micro_batch.memory_model`), and what is left is the room. Where the rooms together are too
small, micro-batches become smaller, in proportion to what each can give up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hetero_hvd.core.shards.cut import COPIES, NoRoom, alone, loads

ROOM_RATIO = 0.95
"""Of what a memory has left beside model and gradients, before the passes are measured; the rest is
for these, whose micro-batches are made so small that they fit."""

RECUT_RATIO = 0.1
"""Nothing moves as long as each holds what it would by the rooms of now, but for this part of it.
What is measured of a process's memory swings by some per cent, and what moves costs as many bytes
on the network, for the sake of somewhat larger micro-batches."""


class StateRoom(NamedTuple):
    """What a worker's memory holds of a state, in blocks.

    Attributes:
        most_blocks: With the smallest micro-batches, >= 0.
        idle_blocks: What m0 alone would leave.
        sample_blocks: What each sample of a micro-batch takes, m1, >= 0; 0 before it is measured.
    """

    most_blocks: int = 0
    idle_blocks: float = 0.0
    sample_blocks: float = 0.0

    def beside(self, num_samples: int) -> int:
        """What is left beside micro-batches of so many samples, blocks, >= 0."""
        left = int(self.idle_blocks - self.sample_blocks * num_samples)
        return max(0, min(self.most_blocks, left))


def squeezed(
    num_blocks: int, rooms: Sequence[int], most: Sequence[int], copies: int
) -> tuple[int, ...]:
    """Rooms that hold so many copies: where they are too small, batches give way to parts.

    Args:
        num_blocks: Of the state, >= 0.
        rooms: Of each rank beside its share of the batch, in blocks.
        most: Of each rank beside the smallest micro-batches.
        copies: Of each block.

    Raises:
        NoRoom: Even the smallest micro-batches leave too little.
    """
    limits = [min(num_blocks, room) for room in rooms]
    gives = [max(0, min(num_blocks, m) - lim) for m, lim in zip(most, limits, strict=True)]
    short, total = copies * num_blocks - sum(limits), sum(gives)
    if short <= 0:
        return tuple(rooms)
    if short > total:
        raise NoRoom(f"room for {sum(limits) + total} of {copies * num_blocks} blocks")
    return tuple(lim + -(-short * give // total) for lim, give in zip(limits, gives, strict=True))


def shared(
    num_blocks: int, rooms: Sequence[int], most: Sequence[int], held: Sequence[int]
) -> tuple[int, ...]:
    """How many blocks each worker is to hold.

    Each block is held by two workers. Where all together have no room for that and one alone has it
    for everything, that one holds everything, as it would if the others were gone.

    Args:
        num_blocks: Of the state, >= 0.
        rooms: Of each rank beside its share of the batch, in blocks.
        most: Of each rank beside the smallest micro-batches.
        held: What each holds now.

    Returns:
        Blocks of each rank.

    Raises:
        NoRoom: There is too little for two copies, and none has it for everything.
    """
    copies = min(COPIES, len(rooms))
    try:
        found = loads(num_blocks, squeezed(num_blocks, rooms, most, copies), copies)
    except NoRoom:
        if (one := alone(num_blocks, most, held)) is None:
            raise
        return tuple(one)
    is_near = all(
        abs(now - wanted) <= RECUT_RATIO * wanted and now <= room
        for wanted, now, room in zip(found, held, most, strict=True)
    )
    return tuple(held if is_near and sum(held) == sum(found) else found)
