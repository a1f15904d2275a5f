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
    Holdings,
    Move,
    Shard,
    Span,
    as_held,
    contributors,
    cut,
    lost,
    moves,
    rescues,
    spans_of,
)
from hetero_hvd.worker.comm.horovod import Collective, Interrupted
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.micro_batch.sizing import PassMemory
from hetero_hvd.worker.options import DEFAULT_BUCKET_BYTES
from hetero_hvd.worker.shards.element_wise import BLOCK_ELEMENTS, prove_element_wise
from hetero_hvd.worker.shards.exchanges import (
    NUM_PACKS,
    PACK_BLOCKS,
    collect,
    hand_gradients,
    one_of_each,
    send_all,
    send_pieces,
    tell_parameters,
)
from hetero_hvd.worker.shards.head_room import HeadRoom
from hetero_hvd.worker.shards.members import (
    HeldShards,
    ShardMember,
    check_held,
    half_done,
    holdings,
    in_pieces,
    mebibytes,
    newest_version,
    packs,
    rooms_of,
)
from hetero_hvd.worker.shards.script_state import ScriptState
from hetero_hvd.worker.shards.slices import (
    Layout,
    Slices,
    Whole,
)
from hetero_hvd.worker.shards.wishes import Wishes

logger = logging.getLogger(__name__)

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
        slices: What this worker holds.
        parts: Who holds what just now.
        finish_elsewhere: Called with rendezvous and fault when others are lost in the midst of an
            update: returns once it is complete in another rendezvous, or raises Interrupted.
        wishes: What the workers tell each other with each step.
        may_leave: Whether this worker may, as others have all that it holds.

    Raises:
        UserError: Its state cannot be cut.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, bucket_bytes: int = DEFAULT_BUCKET_BYTES
    ) -> None:
        self.is_cut: bool | None = True
        self._optimizer = optimizer
        self._bucket_bytes = bucket_bytes
        self._proven = prove_element_wise(optimizer)
        self._layout = Layout(optimizer)
        self._begin()
        self._whole: Whole | None = Whole.of(self._layout, self._proven, optimizer.state_dict())
        self._script = ScriptState(optimizer)
        self.parts: list[Shard] = []
        self._target: list[Shard] = []
        self._held: dict[int, list[Span]] = {}
        self._moves: deque[Move] = deque()
        self._num_moved = self._num_exchanges = 0
        self._collected: Whole | None = None
        self._collective: Collective | None = None
        self._rooms: list[int] = []
        self._basis = -1
        self._updates = 0
        self._is_torn = False
        self._has_more = False
        self.finish_elsewhere: Callable[[Collective, Interrupted], None] = _raise
        self.wishes = Wishes()
        self.may_leave = True

    def _begin(self) -> None:
        """With nothing held of what the optimizer is proven to keep."""
        layout = self._layout
        self._block_bytes = BLOCK_ELEMENTS * self._proven.num_bytes
        self.slices = Slices(self._optimizer, layout, self._proven)
        self.head_room = HeadRoom(
            layout.num_blocks,
            self._block_bytes,
            layout.step_bytes(NUM_PACKS * PACK_BLOCKS, self._bucket_bytes),
            layout.block_bytes,
        )

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
        state = {"param_groups": self._script.read()["param_groups"]}
        collected = self._collected
        return state if collected is None else state | {"state": collected.states}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over the options of another worker, or the whole state of a checkpoint."""
        own = {"state": {}, "param_groups": list(state["param_groups"])}
        self._optimizer.load_state_dict(own)
        if "state" in state:
            self.slices.keep_only([])
            self._basis = -1
            self._updates = 0
            self._is_torn = False
            if set().union(*state["state"].values()) - self._proven.known:  # by other options
                self._proven = prove_element_wise(self._optimizer)
                self._begin()
            self._whole = Whole.of(self._layout, self._proven, state)

    def held(self, applied_steps: int, memory: Callable[[], PassMemory] | None) -> HeldShards:
        """What to tell the others.

        Args:
            applied_steps: Where the training stands: what was loaded just now is of that step.
            memory: Tells what it holds and what the passes take of it; None: it is as last time.
        """
        self.head_room.measure(memory)
        if self._basis < 0:
            self._basis = applied_steps
            if self._script.is_filled and self.is_cut is not False:  # it may have been loaded since
                self._whole = Whole.of(self._layout, self._proven, self._script.read())
        is_whole = self._whole is not None
        spans = [Span(0, self._layout.num_blocks)] if is_whole else self.slices.spans()
        return HeldShards(
            basis=self._basis,
            updates=self._updates,
            spans=tuple((span.start, span.stop) for span in spans),
            is_whole=is_whole,
            room=self.head_room.room(self.slices.num_blocks),
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
        return self.slices.num_bytes + whole, self.head_room.load_bytes

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
            self.slices.keep_only([])
        self._script.is_in_parts = True
        self._basis, self._updates = truth
        self._is_torn = False
        self._has_more = False
        self._held = {n: held.get(n, []) for n in range(len(members))}
        self._moves = self._moves_to(held)
        self._num_moved = self._num_exchanges = 0
        self._rooms = rooms_of(members, num_blocks, self._block_bytes)
        self.wishes.leaving = set()
        self.may_leave = False
        if loads is None:
            self.parts = self._target
            self.may_leave = not lost(num_blocks, {n: held[n] for n in held if n != rank})
            return
        if any(members[n].held.is_whole for n in held):
            while self._moves:
                self.move_some(collective)
        if self._whole is not None:
            self._take_own_parts(self._whole, rank)
        if not self._moves:
            self._moved()
            return
        self.parts = as_held(num_blocks, self._held)
        if not rank:
            logger.warning(
                "shard_optimizer: %s of the optimizer's state are to move to other workers, between"
                " the next steps, which go on with those who hold it",
                self._in_words(sum(move.span.length for move in self._moves)),
            )

    def _take_own_parts(self, whole: Whole, rank: int) -> None:
        """All have the whole state: each keeps what it is to hold of it."""
        self._whole = None
        self._optimizer.state.clear()
        for piece, state in whole.hand_over(spans_of(self._target, rank)):
            self.slices.take(piece, state)
        self._held = {n: spans_of(self._target, n) for n in self._held}

    def _moves_to(self, held: Holdings) -> deque[Move]:
        wanted = moves(self._target, held)
        return deque(piece for move in wanted for piece in in_pieces(move, MOVE_BLOCKS))

    def _hold(self, move: Move) -> None:
        self._held[move.taker] = sorted([*self._held[move.taker], move.span])

    @property
    def is_moving(self) -> bool:
        """Whether some part has to get its second holder still, or another one."""
        return bool(self._moves)

    def move_some(self, collective: Collective) -> None:
        """Between two steps: send the next pieces, one of each giver; all members call it.

        Raises:
            Interrupted: The rendezvous broke; what has arrived is held.
        """
        now = one_of_each(self._moves)
        self._num_exchanges += 1
        give = (self._whole or self.slices).give
        name = f"shards.move.{self._num_exchanges % 2}"
        send_pieces(collective, now, give, self.slices.take, name)
        for move in now.values():
            self._moves.remove(move)
            self._num_moved += move.span.length
            self._hold(move)
        if self._moves:
            self.parts = as_held(self._layout.num_blocks, self._held)
        elif self._whole is None:
            self._moved()

    def last_moves(self) -> list[Move] | None:
        """What only those have who leave; None: others have no room for it, or nobody stays."""
        return rescues(self._layout.num_blocks, self._rooms, self._held, self.wishes.leaving)

    def hand_over(self, collective: Collective, wanted: Sequence[Move]) -> None:
        """Before some workers leave others get what only those have; all members call it.

        Raises:
            Interrupted: The rendezvous broke; what has arrived is held.
        """
        self._let_go(collective)  # a step that was skipped has not done so
        sent = [piece for move in wanted for piece in in_pieces(move, MOVE_BLOCKS)]
        if sent and not collective.rank:
            logger.warning(
                "shard_optimizer: %s of the optimizer's state move before %d workers leave",
                self._in_words(sum(move.span.length for move in sent)),
                len(self.wishes.leaving),
            )
        send_all(collective, sent, self.slices.give, self.slices.take)
        for move in sent:
            self._hold(move)
        # All tell that they have got theirs: only then nobody needs those who leave any more.
        gather_bytes(collective, b"", "shards.handed")
        self.parts = as_held(self._layout.num_blocks, self._held)
        self._moves = self._moves_to(self._held)
        self.may_leave = collective.rank in self.wishes.leaving

    def _moved(self) -> None:
        """All hold what they should, as far as this worker knows.

        What it need not hold goes with the next update: that has sums of all workers, so that each
        has got what was sent to it. Before, another one may be lost that holds it, too.
        """
        rank = self._collective.rank if self._collective is not None else 0
        self.parts = self._target
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

    def step(self) -> None:
        """One update with the gradients that the parameters have, and of all parameters.

        Raises:
            Interrupted: The rendezvous broke, and others are further.
        """
        assert self._collective is not None  # noqa: S101 - the workers have met
        self._let_go(self._collective)
        self._advance()
        # A scheduler asks whether the optimizer has stepped before it does (torch 2, LRScheduler).
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        try:
            tell_parameters(self._collective, self._layout, self.parts, self.head_room.pack_blocks)
        except Interrupted as fault:
            self.finish_elsewhere(self._collective, fault)
        self._is_torn = False

    def _let_go(self, collective: Collective) -> None:
        """All have been heard of since the moves: what this worker need not hold can go."""
        if self._has_more:
            self._has_more = False
            self.slices.keep_only(self._held[collective.rank])

    def _advance(self) -> None:
        """Update what this worker holds."""
        self._is_torn = True
        self.slices.step()
        self._updates += 1

    def complete(self, collective: Collective, members: Sequence[ShardMember]) -> bool:
        """Bring an update to its end in which some members wait; all members call it.

        Returns:
            Whether their parameters are complete now; else another one is further than they, or a
            part is lost: nothing was done.

        Raises:
            Interrupted: The rendezvous broke.
        """
        num_blocks = self._layout.num_blocks
        half = half_done(members)
        if half is None or lost(num_blocks, half.holders):
            return False
        if half.behind:
            takes = collective.rank in half.behind
            hand_gradients(collective, self._layout.parameters, half.waiting[0], takes=takes)
            if takes:
                self._advance()
                for parameter in self._layout.parameters:
                    parameter.grad = None
        parts = as_held(num_blocks, half.holders)
        is_mine = collective.rank in half.waiting
        tell_parameters(collective, self._layout, parts, is_mine=is_mine)
        return True

    @contextmanager
    def collected(self, collective: Collective) -> Iterator[None]:
        """Rank 0 has the whole state meanwhile, on the host; all members call it.

        Raises:
            Interrupted: The rendezvous broke.
        """
        whole = Whole(self._layout, self._proven.names)
        collect(
            collective, packs(contributors(self.parts), MOVE_BLOCKS), self.slices.give, whole.put
        )
        self._collected = None if collective.rank else whole
        try:
            yield
        finally:
            self._collected = None

    def own_part(self, rank: int) -> dict[str, Any]:
        """What this worker writes of a checkpoint; with the others' it is the whole state.

        Args:
            rank: Of this worker, which has met the others.
        """
        spans = [span for span, teller in contributors(self.parts) if teller == rank]
        return self.slices.part(spans, (self._basis, self._updates))

    @property
    def is_collected(self) -> bool:
        """Whether this worker has the whole state just now."""
        return self._collected is not None


def _raise(_: Collective, fault: Interrupted) -> None:
    raise fault
