"""The script's optimizer with its state in parts on the workers, each part on two.

In each step all workers have the whole reduced gradient. Each updates the parts that it holds; of
each part one holder tells the others what has become of its parameters, and all take that over.

A worker that is lost may leave the others half way: their parts are updated, their parameters not
complete. Who has the gradient goes on to the end in the next rendezvous (`complete`): it hands the
gradient to holders who had not got it, and the parameters come from whoever holds them. Nothing is
taken back, and no second copy of a state is kept for that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hetero_hvd.core.shards.cut import (
    Move,
    Shard,
    Span,
    as_held,
    contributors,
    cut,
    lost,
    moves,
    spans_of,
)
from hetero_hvd.worker.comm.horovod import Collective, Interrupted
from hetero_hvd.worker.micro_batch.sizing import PassMemory
from hetero_hvd.worker.options import DEFAULT_BUCKET_BYTES
from hetero_hvd.worker.shards.checkpoint_wishes import CheckpointWishes
from hetero_hvd.worker.shards.element_wise import BLOCK_ELEMENTS, prove_element_wise
from hetero_hvd.worker.shards.head_room import HeadRoom
from hetero_hvd.worker.shards.members import (
    HeldShards,
    ShardMember,
    check_held,
    holdings,
    in_pieces,
    mebibytes,
    newest_version,
    packs,
)
from hetero_hvd.worker.shards.slices import (
    Layout,
    Slices,
    Whole,
    packed,
    unpacked,
)

logger = logging.getLogger(__name__)

PACK_BLOCKS, NUM_PACKS = 2**11, 2
"""Blocks of parameters that travel in one allgather: 2 MiB in float32; and how many are under way
at once: one is put in its place while the next one comes. An update takes them beside the state."""

MOVE_BLOCKS = 2**13
"""Blocks of which the state moves between two steps: 16 MiB for Adam in float32."""


class ShardedOptimizer:
    """The state of one optimizer, as far as this worker holds it; a part of the replica.

    Its state dict is what is equal on all workers, the options of the groups; with the whole state
    beside it only while a checkpoint is made. So checkpoints are those of the optimizer itself.

    Args:
        optimizer: The script's.
        bucket_bytes: In which gradients travel.

    Attributes:
        is_cut: Whether it lies in parts; None: the workers have not met yet.
        head_room: What the memory has for it.
        finish_elsewhere: Called with rendezvous and fault when others are lost in the midst of an
            update: returns once it is complete in another rendezvous, or raises Interrupted.
        wishes: What the workers tell each other of checkpoints.

    Raises:
        UserError: Its state cannot be cut.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, bucket_bytes: int = DEFAULT_BUCKET_BYTES
    ) -> None:
        self.is_cut: bool | None = True
        num_bytes, self._names = prove_element_wise(optimizer)
        self._block_bytes = BLOCK_ELEMENTS * num_bytes
        self._optimizer = optimizer
        self._layout = Layout(optimizer)
        self._slices = Slices(optimizer, self._layout, self._names)
        self._whole: Whole | None = self._whole_of(optimizer.state_dict())
        self._parts: list[Shard] = []
        self._target: list[Shard] = []
        self._held: dict[int, list[Span]] = {}
        self._moves: deque[Move] = deque()
        self._num_moved = self._num_exchanges = 0
        self._collected: Whole | None = None
        self._collective: Collective | None = None
        self._room_blocks: int | None = None  # None: as it is measured
        self.head_room = HeadRoom(
            self._layout.num_blocks,
            self._block_bytes,
            self._layout.step_bytes(NUM_PACKS * PACK_BLOCKS, bucket_bytes),
        )
        self._basis = -1
        self._updates = 0
        self._is_torn = False
        self._has_more = False
        self.finish_elsewhere: Callable[[Collective, Interrupted], None] = _raise
        self.wishes = CheckpointWishes()

    @property
    def kind(self) -> type:
        """Whose state a checkpoint of it holds."""
        return type(self._optimizer)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The script's."""
        return self._optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        """What is equal on all workers; with what was collected, while that is there."""
        state = {"param_groups": self._optimizer.state_dict()["param_groups"]}
        collected = self._collected
        return state if collected is None else state | {"state": collected.states}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over the options of another worker, or the whole state of a checkpoint."""
        own = {"state": {}, "param_groups": list(state["param_groups"])}
        self._optimizer.load_state_dict(own)
        if "state" in state:
            self._slices.keep_only([])
            self._basis = -1
            self._updates = 0
            self._is_torn = False
            self._whole = self._whole_of(state)

    def _whole_of(self, state: Mapping[str, Any]) -> Whole:
        """All of a state dict's, from which each worker takes its parts when they have met."""
        keys = [key for group in state["param_groups"] for key in group["params"]]
        kept = state["state"]
        states = {number: kept[key] for number, key in enumerate(keys) if key in kept}
        return Whole(self._layout, self._names, states)

    def held(self, applied_steps: int, memory: Callable[[], PassMemory] | None) -> HeldShards:
        """What to tell the others.

        Args:
            applied_steps: Where the training stands: what was loaded just now is of that step.
            memory: Tells what it holds and what the passes take of it; None: it is as last time.
        """
        self.head_room.measure(memory)
        if self._basis < 0:
            self._basis = applied_steps
        is_whole = self._whole is not None
        spans = [Span(0, self._layout.num_blocks)] if is_whole else self._slices.spans()
        return HeldShards(
            basis=self._basis,
            updates=self._updates,
            spans=tuple((span.start, span.stop) for span in spans),
            is_whole=is_whole,
            room=self.head_room.room(self._room_blocks, self._whole or self._slices),
            smallest=self.head_room.passes.smallest,
            largest=self.head_room.passes.largest,
            is_torn=self._is_torn,
        )

    @property
    def is_torn(self) -> bool:
        """Whether the parameters are between two updates: only others can make them whole."""
        return self._is_torn

    def check(self, members: Sequence[ShardMember]) -> None:
        """See that each part has a holder in a new rendezvous; raises PartsLost."""
        check_held(members, self._layout.num_blocks)

    def memory(self) -> tuple[float, float]:
        """What the state has of the memory that this worker computes in, and will have; bytes."""
        whole = 0 if self._whole is None else self._whole.num_bytes
        return self._slices.num_bytes + whole, self.head_room.load_bytes

    @property
    def is_unkept(self) -> bool:
        """Whether it has been updated since it was loaded, and is in parts."""
        return self._whole is None and bool(self._updates)

    def meet(
        self, collective: Collective, members: Sequence[ShardMember], shares: Sequence[int]
    ) -> None:
        """Decide who holds what from now on; what has to move does so between the next steps.

        Where memory is short nothing does, see `head_room`. Of all in rank order `members` tells
        what they report, and `shares` how many samples each has in a step.

        Raises:
            Interrupted: The rendezvous broke.
        """
        self._collective = collective
        rank, num_blocks = collective.rank, self._layout.num_blocks
        truth = newest_version(members)
        assert truth is not None  # noqa: S101 - see `check`
        held = holdings(members, truth)
        loads = self.head_room.loads(members, shares, held, rank)
        self._target = as_held(num_blocks, held) if loads is None else cut(num_blocks, loads, held)
        if rank not in held:
            self._whole = None
            self._optimizer.state.clear()
            self._slices.keep_only([])
        self._basis, self._updates = truth
        self._is_torn = False
        self._has_more = False
        self._held = {n: held.get(n, []) for n in range(len(members))}
        self._moves = deque(
            piece for move in moves(self._target, held) for piece in in_pieces(move, MOVE_BLOCKS)
        )
        self._num_moved = self._num_exchanges = 0
        if loads is None:
            self._parts = self._target
            return
        if any(members[n].held.is_whole for n in held):
            while self._moves:
                self.move_some(collective)
        if self._whole is not None:
            whole, self._whole = self._whole, None
            self._optimizer.state.clear()
            for piece, state in whole.hand_over(spans_of(self._target, rank)):
                self._slices.take(piece, state)
            self._held = {n: spans_of(self._target, n) for n in range(len(members))}
        if not self._moves:
            self._moved()
            return
        self._parts = as_held(num_blocks, self._held)
        if not rank:
            logger.warning(
                "shard_optimizer: %s of the optimizer's state are to move to other workers, between"
                " the next steps, which go on with those who hold it",
                self._in_words(sum(move.span.length for move in self._moves)),
            )

    @property
    def is_moving(self) -> bool:
        """Whether some part has to get its second holder still, or another one."""
        return bool(self._moves)

    def move_some(self, collective: Collective) -> None:
        """Between two steps: send the next pieces, one of each giver; all members call it.

        Raises:
            Interrupted: The rendezvous broke; what has arrived is held.
        """
        now: dict[int, Move] = {}
        for move in self._moves:
            now.setdefault(move.giver, move)
        rank = collective.rank
        rows, counts = torch.empty(0, dtype=torch.uint8), [0] * collective.size
        if rank in now:
            rows = packed((self._whole or self._slices).give(now[rank].span))
            counts[now[rank].taker] = len(rows)
        self._num_exchanges += 1
        got = collective.exchange(rows, counts, f"shards.move.{self._num_exchanges % 2}")
        for piece, state in unpacked(got):
            self._slices.take(piece, state)
        for move in now.values():
            self._moves.remove(move)
            self._num_moved += move.span.length
            self._held[move.taker] = sorted([*self._held[move.taker], move.span])
        if self._moves:
            self._parts = as_held(self._layout.num_blocks, self._held)
        elif self._whole is None:
            self._moved()

    def _moved(self) -> None:
        """All hold what they should, as far as this worker knows.

        What it need not hold goes with the next update: that has sums of all workers, so that each
        has got what was sent to it. Before, another one may be lost that holds it, too.
        """
        rank = self._collective.rank if self._collective is not None else 0
        self._parts = self._target
        self._held = {n: spans_of(self._target, n) for n in self._held}
        self._has_more = True
        if self._num_moved and not rank:
            logger.warning(
                "shard_optimizer: %s of the optimizer's state have moved: each part is on %s again",
                self._in_words(self._num_moved),
                "two workers" if len(self._target[0].holders) > 1 else "one worker",
            )
        self._num_moved = 0

    def _in_words(self, num_blocks: int) -> str:
        return mebibytes(num_blocks * self._block_bytes)

    def update(self) -> None:
        """One update with the gradients that the parameters have, and of all parameters.

        Raises:
            Interrupted: The rendezvous broke, and others are further.
        """
        assert self._collective is not None  # noqa: S101 - the workers have met
        if self._has_more:
            self._has_more = False
            self._slices.keep_only(self._held[self._collective.rank])
        self._advance()
        # A scheduler asks whether the optimizer has stepped before it does (torch 2, LRScheduler).
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        try:
            self._tell(self._collective, self._parts)
        except Interrupted as fault:
            self.finish_elsewhere(self._collective, fault)
        self._is_torn = False

    def _advance(self) -> None:
        """Update what this worker holds."""
        self._is_torn = True
        self._slices.step()
        self._updates += 1

    def complete(self, collective: Collective, members: Sequence[ShardMember]) -> bool:
        """Bring an update to its end in which some members wait; all members call it.

        Returns:
            Whether their parameters are complete now; else another one is further than they, or a
            part is lost: nothing was done.

        Raises:
            Interrupted: The rendezvous broke.
        """
        waiting = [rank for rank, member in enumerate(members) if member.is_applying]
        source = waiting[0]
        first = members[source]
        if any(member.applied_steps > first.applied_steps for member in members):
            return False
        basis, updates = first.held.version
        behind = [rank for rank, m in enumerate(members) if m.held.version == (basis, updates - 1)]
        holders = holdings(members, (basis, updates))
        holders |= holdings(members, (basis, updates - 1))
        num_blocks = self._layout.num_blocks
        if lost(num_blocks, holders):
            return False
        if behind:
            self._hand_gradients(collective, source, takes=collective.rank in behind)
        parts = as_held(num_blocks, holders)
        self._tell(collective, parts, is_mine=collective.rank in waiting)
        return True

    def _hand_gradients(self, collective: Collective, source: int, *, takes: bool) -> None:
        """Rank `source`'s gradients, for those whose parts have not had the update."""
        parameters = self._layout.parameters
        is_source = collective.rank == source
        used = torch.tensor([float(is_source and each.grad is not None) for each in parameters])
        collective.broadcast(used, source, "shards.used")
        for number, (parameter, flag) in enumerate(zip(parameters, used.tolist(), strict=True)):
            if not flag:
                if takes:
                    parameter.grad = None
                continue
            grad = parameter.grad if is_source else torch.empty_like(parameter)
            assert grad is not None  # noqa: S101 - it is used
            # A copy: what a broken operation leaves in its tensor is undefined.
            body = grad.detach().reshape(-1).view(torch.uint8).to("cpu", copy=True)
            collective.broadcast(body, source, f"shards.gradient.{number}")
            if takes:
                parameter.grad = body.to(parameter.device).view(parameter.dtype).view_as(parameter)
        if takes:
            self._advance()
            for parameter in parameters:
                parameter.grad = None

    def _tell(
        self, collective: Collective, parts: Sequence[Shard], *, is_mine: bool = True
    ) -> None:
        """Of each part one holder tells all what its parameters are.

        Args:
            collective: The rendezvous.
            parts: Who holds what.
            is_mine: Whether this worker takes it over.
        """
        if collective.size == 1:
            return
        under_way: deque[tuple[list[tuple[Span, int]], Any]] = deque()
        for number, pack in enumerate(packs(contributors(parts), PACK_BLOCKS)):
            own = [span for span, rank in pack if rank == collective.rank]
            rows = self._layout.bytes_of(own)
            name = f"shards.parameters.{number}"
            under_way.append((pack, collective.gather_rows_async(rows.view(-1, 1), name)))
            if len(under_way) == NUM_PACKS:
                self._put(*under_way.popleft(), collective, is_mine=is_mine)
        while under_way:
            self._put(*under_way.popleft(), collective, is_mine=is_mine)

    def _put(
        self,
        pack: Sequence[tuple[Span, int]],
        handle: Any,  # noqa: ANN401 - see `Collective`
        collective: Collective,
        *,
        is_mine: bool,
    ) -> None:
        rows = collective.wait(handle).view(-1)
        if not is_mine:
            return
        spans = (span for span, _ in sorted(pack, key=lambda each: each[1]))
        self._layout.put_bytes(spans, rows)

    @contextmanager
    def collected(self, collective: Collective) -> Iterator[None]:
        """Rank 0 has the whole state meanwhile, on the host; all members call it.

        Raises:
            Interrupted: The rendezvous broke.
        """
        self._collect(collective)
        try:
            yield
        finally:
            self._collected = None

    def _collect(self, collective: Collective) -> None:
        whole = Whole(self._layout, self._names)
        for number, pack in enumerate(packs(contributors(self._parts), MOVE_BLOCKS)):
            mine = [span for span, rank in pack if rank == collective.rank]
            rows = packed([each for span in mine for each in self._slices.give(span)])
            counts = [len(rows), *[0] * (collective.size - 1)]
            got = collective.exchange(rows, counts, f"shards.collect.{number}")
            for piece, state in unpacked(got):  # nothing comes but to rank 0
                whole.put(piece, state)
        self._collected = whole if collective.rank == 0 else None

    def own_part(self, rank: int) -> dict[str, Any]:
        """What this worker writes of a checkpoint; with the others' it is the whole state.

        Args:
            rank: Of this worker, which has met the others.
        """
        spans = [span for span, teller in contributors(self._parts) if teller == rank]
        return self._slices.part(spans, (self._basis, self._updates))

    @property
    def is_collected(self) -> bool:
        """Whether this worker has the whole state just now."""
        return self._collected is not None


def _raise(_: Collective, fault: Interrupted) -> None:
    raise fault
