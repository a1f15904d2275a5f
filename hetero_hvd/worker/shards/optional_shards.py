"""An optimizer's state that is cut only once it does not fit whole on every worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.micro_batch.sizing import PassMemory
from hetero_hvd.worker.options import DEFAULT_BUCKET_BYTES
from hetero_hvd.worker.shards.members import HeldShards, ShardMember, newest_version
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer
from hetero_hvd.worker.shards.slices import Whole, bytes_on


class OptionalShards(ShardedOptimizer):
    """As long as it is whole, the script's optimizer has it, as it would without this class.

    All decide it alike in a rendezvous. Once the state is cut it stays so, as long as anybody
    trains with it.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, bucket_bytes: int = DEFAULT_BUCKET_BYTES
    ) -> None:
        super().__init__(optimizer, bucket_bytes)
        self.is_cut = None
        self._has_whole = False  # in its own memory, and trains with it

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, or what is equal on all workers where it is cut."""
        return self._optimizer.state_dict() if self.is_cut is False else super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over another worker's state, or that of a checkpoint."""
        if self.is_cut is not False:
            super().load_state_dict(state)
            return
        self._optimizer.load_state_dict(dict(state))
        self._basis = -1
        self._updates = 0

    def held(self, applied_steps: int, memory: Callable[[], PassMemory] | None) -> HeldShards:
        """What to tell the others; see there."""
        found = replace(super().held(applied_steps, memory), is_cut=self.is_cut)
        if self._has_whole:
            most = max(self._layout.num_blocks, found.room.most_blocks)
            found = replace(found, room=found.room._replace(most_blocks=most))
        if self.is_cut is not False:
            return found
        return replace(found, spans=((0, self._layout.num_blocks),), is_whole=True)

    def memory(self) -> tuple[float, float]:
        """What the state has of the memory that this worker computes in, and will have; bytes."""
        if self.is_cut is not False:
            return super().memory()
        return bytes_on(self._layout.kind, self._optimizer.state.values()), self.head_room.num_bytes

    def decide(self, members: Sequence[ShardMember]) -> bool:
        """See whether the state is to be cut; all members call it.

        Of those who train with the whole nobody is asked: it fits there.

        Returns:
            Whether that has changed something for a member: then all report again.
        """
        new = [member for member in members if member.held.is_cut is None]
        least = min(new, key=lambda each: each.held.room.most_blocks, default=None)
        fits = (
            least is None
            or not self._block_bytes
            or least.held.room.most_blocks >= self._layout.num_blocks
        )
        is_cut = not fits or any(member.held.is_cut for member in members)
        if all(member.held.is_cut is is_cut for member in members):
            return False
        if self.is_cut is not is_cut:
            self.head_room.news.append(self._in_words_why(least, is_cut=is_cut, fits=fits))
            self._become(is_cut=is_cut)
        return True

    def _in_words_why(self, least: ShardMember | None, *, is_cut: bool, fits: bool) -> str:
        takes = self._in_words(self._layout.num_blocks)
        left = "" if least is None else self._in_words(least.held.room.most_blocks)
        if not is_cut:
            why = f"whole on each worker: it takes {takes}, and at least {left} are left"
        elif fits or least is None:
            why = "cut into parts, as others have it"
        else:
            why = f"cut into parts: it takes {takes}, and {least.name} has {left} left"
        return f"the optimizer's state is {why}"

    def _become(self, *, is_cut: bool) -> None:
        """From now on in parts, which are given out in the next rendezvous; or whole."""
        if is_cut:
            own = self._optimizer.state_dict()
            self._whole = self._whole or Whole.of(self._layout, self._proven, own)
            self._optimizer.state.clear()
        elif self._whole is not None:
            kept, self._whole = self._whole.states, None
            groups = self._optimizer.state_dict()["param_groups"]
            keys = [key for group in groups for key in group["params"]]
            states = {key: kept[number] for number, key in enumerate(keys) if number in kept}
            self._optimizer.load_state_dict({"state": states, "param_groups": groups})
        self._has_whole |= self.is_cut is False
        self.is_cut = is_cut

    def meet(
        self, collective: Collective, members: Sequence[ShardMember], shares: Sequence[int]
    ) -> None:
        """See there; all have the same whole state already where it is not cut."""
        if self.is_cut:
            super().meet(collective, members, shares)
            self._has_whole &= bool(self.head_room.shortage)
            return
        self._collective = collective
        truth = newest_version(members)
        assert truth is not None  # noqa: S101 - nobody is between two updates
        self._basis, self._updates = truth

    def step(self) -> None:
        """One update; see there."""
        if self.is_cut:
            super().step()
            return
        self._optimizer.step()
        self._updates += 1
