"""What this worker's memory has for parts of a state beside model, gradients and passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hetero_hvd.core.micro_batch.memory_model import HEAD_ROOM_RATIO
from hetero_hvd.core.shards.cut import Span
from hetero_hvd.core.shards.rooms import ROOM_RATIO, StateRoom
from hetero_hvd.worker.micro_batch.sizing import PassMemory
from hetero_hvd.worker.shards.exchanges import pack_blocks
from hetero_hvd.worker.shards.members import PartsShort, ShardMember, mebibytes, placed


class HeadRoom:
    """Measures it, and decides with that of the others how much of the state each is to hold.

    Args:
        num_blocks: Of the state.
        block_bytes: Of the state of a block; 0: nothing but the work is divided.
        step_bytes: What a step takes beside parameters, state and passes.
        told_bytes: Of the parameters of a block, which travel after each update.

    Attributes:
        num_bytes: Of the whole state.
        load_bytes: What this worker is to hold of it.
        pack_blocks: Blocks of parameters that travel at a time; alike on all members.
        passes: What was measured last.
        shortage: What there is of memory and what it takes, while that is too little; "": it is
            enough.
        news: What was decided and nobody has said yet, a line each.
    """

    def __init__(
        self, num_blocks: int, block_bytes: float, step_bytes: float, told_bytes: float
    ) -> None:
        self._num_blocks = num_blocks
        self._block_bytes = block_bytes
        self._step_bytes = step_bytes
        self.num_bytes = self._num_blocks * block_bytes
        self._told_bytes = told_bytes
        self.load_bytes = 0.0
        self.pack_blocks = 0
        self.passes = PassMemory(0.0, 0.0, None, 1, 0)
        self.shortage = ""
        self.news: list[str] = []

    def measure(self, memory: Callable[[], PassMemory] | None) -> None:
        """Ask what the memory holds and what the passes take of it; None: it is as last time."""
        if memory is not None:
            self.passes = memory()

    def room(self, held_blocks: int) -> StateRoom:
        """What was measured, in blocks; what is held already is there in any case.

        Args:
            held_blocks: So many of a state that is trained with.
        """
        passes, block_bytes = self.passes, max(1.0, self._block_bytes)
        least_bytes = passes.idle_bytes + self._step_bytes
        if passes.line is None:
            left = ROOM_RATIO * (passes.limit_bytes - least_bytes) / block_bytes
            return StateRoom(max(held_blocks, int(left)), left)
        base, slope = (each / (1 - HEAD_ROOM_RATIO) for each in passes.line)
        taken_bytes = max(least_bytes / (1 - HEAD_ROOM_RATIO), base + slope * passes.smallest)
        return StateRoom(
            most_blocks=max(held_blocks, int((passes.limit_bytes - taken_bytes) / block_bytes)),
            idle_blocks=(passes.limit_bytes - base) / block_bytes,
            sample_blocks=slope / block_bytes,
        )

    def loads(
        self,
        members: Sequence[ShardMember],
        shares: Sequence[int],
        held: Mapping[int, Sequence[Span]],
        rank: int,
    ) -> tuple[int, ...] | None:
        """How many blocks each member is to hold; None: all together are short of memory.

        Args:
            members: In rank order.
            shares: Their samples in each step.
            held: What each rank holds that is of use.
            rank: Of this worker.
        """
        self.shortage = ""
        try:
            found = placed(members, shares, self._num_blocks, self._block_bytes, held)
        except PartsShort as why:
            self.shortage = str(why)
            return None
        self.load_bytes = found.loads[rank] * self._block_bytes
        spare = min(room - load for room, load in zip(found.rooms, found.loads, strict=True))
        spare_bytes = spare * self._block_bytes if self._block_bytes else math.inf
        self.pack_blocks = pack_blocks(spare_bytes, self._told_bytes)
        if self._block_bytes:
            is_alone = max(found.loads) == sum(found.loads)
            where = "on one worker alone" if is_alone else "each part on two workers"
            self.news.append(
                f"the optimizer's state takes {mebibytes(self.num_bytes)}, "
                f"{where}: {found.in_words(members, self._block_bytes)}"
            )
        return found.loads
