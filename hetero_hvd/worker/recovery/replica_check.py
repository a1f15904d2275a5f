"""Replicas that have silently become different are found, and made equal.

A bit that flips in memory, or a script that changes one worker's model, is not seen by any
reduction: from then on this replica's gradients are those of another model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from hetero_hvd.core.shards.cut import Move, Span, contributors
from hetero_hvd.errors import TransientError
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.data.position import Position
from hetero_hvd.worker.recovery.comparison import Described, ReplicaComparison
from hetero_hvd.worker.recovery.replica import Replica
from hetero_hvd.worker.recovery.transfer import copy_state
from hetero_hvd.worker.shards.exchanges import send_all
from hetero_hvd.worker.shards.members import packs
from hetero_hvd.worker.shards.sharded_optimizer import ShardedOptimizer
from hetero_hvd.worker.shards.slices import Slices

logger = logging.getLogger(__name__)

CHECK_BLOCKS = 2**13
"""Of an optimizer's state in parts, what has a digest together: 16 MiB for Adam in float32."""


class Holder(NamedTuple):
    """Whose replica is compared.

    Attributes:
        worker: Who it is.
        arithmetic: See `Described`.
    """

    worker: WorkerId
    arithmetic: str


class Undecided(TransientError):  # noqa: N818 - control flow
    """Replicas differ, and nobody can tell which is right; the message says in what they differ."""


def is_check_due(position: Position, every_steps: int) -> bool:
    """Whether the replicas are to be compared after this step.

    Each so many steps, and when the first, second, fourth, ... epoch is over: what a script does
    wrongly shows early. A pass over the state each 1000 steps costs nothing that could be measured.

    Args:
        position: Where the training is.
        every_steps: Steps between two comparisons, >= 0; 0: there are none.
    """
    epoch = position.epoch
    is_early = position.step_in_epoch == 1 and epoch > 0 and epoch & (epoch - 1) == 0
    steps = position.applied_steps
    return every_steps > 0 and steps > 0 and (is_early or steps % every_steps == 0)


def heal(
    collective: Collective,
    replica: Replica,
    members: Sequence[Holder],
    when: str,
    name: str = "checksums",
) -> tuple[str, bool]:
    """Compare the replicas; copy the right one over the others. Called by all members.

    Args:
        collective: The rendezvous.
        replica: This worker's.
        members: In rank order.
        when: For the log.
        name: Of the operation.

    Returns:
        The checksum of all, and whether something else than rounding was found.

    Raises:
        Interrupted: The rendezvous broke.
        Undecided: Nobody can tell which state is right.
    """
    own = replica.checksum()
    found = [digest.decode() for digest in gather_bytes(collective, own.encode(), name)]
    if len(set(found)) == 1:
        return own, False
    comparison = compare(collective, replica, members, found, range(len(members)))
    right = comparison.right
    if right is None:
        raise Undecided(f"{when} {comparison.in_words(None)}")
    source, wrong = found.index(right), comparison.wrong(right)
    if collective.rank == source and wrong:
        logger.error("%s %s: healed from the majority", when, comparison.in_words(right))
    takers = [rank for rank, digest in enumerate(found) if digest != right]
    copy_state(collective, replica, source, "healing", takers=takers)
    return right, bool(wrong)


def compare(
    collective: Collective,
    replica: Replica,
    members: Sequence[Holder],
    digests: Sequence[str],
    among: Iterable[int],
) -> ReplicaComparison:
    """See in what some replicas differ. Called by all members.

    Args:
        collective: The rendezvous.
        replica: This worker's.
        members: In rank order.
        digests: Of their replicas, in rank order.
        among: Ranks of those whose replicas should be equal.

    Raises:
        Interrupted: The rendezvous broke.
    """
    own = Described(
        *members[collective.rank],
        digest=digests[collective.rank],
        entries=replica.entries(),
        sketches=replica.sketches(),
    )
    payloads = gather_bytes(collective, msgspec.msgpack.encode(own), "entries")
    return ReplicaComparison(
        [msgspec.msgpack.decode(payloads[rank], type=Described) for rank in among]
    )


class HeldPiece(NamedTuple):
    """Blocks of an optimizer's state that several workers hold.

    Attributes:
        span: Which.
        holders: Ranks.
        teller: The one of them from which all have the parameters.
    """

    span: Span
    holders: tuple[int, ...]
    teller: int


class _PartState(NamedTuple):
    """The state of some blocks, as a part of a replica."""

    slices: Slices
    span: Span

    def state_dict(self) -> dict[str, Any]:
        """By the number of the parameter."""
        return {"state": self.slices.joined(self.span)}

    def load_state_dict(self, state: Any, /) -> None:  # noqa: ANN401 - see `Stateful`
        """It is only looked at."""


def heal_parts(
    collective: Collective, shards: ShardedOptimizer, members: Sequence[Holder], when: str
) -> bool:
    """Compare the copies of each part; called by all members, between two steps.

    Two copies do not tell which is right. All have their parameters from one holder of each part,
    whose copy belongs to them: the other one takes it over. What the rounding of unlike processors
    makes of them is left.

    Args:
        collective: The rendezvous.
        shards: This worker's parts.
        members: In rank order.
        when: For the log.

    Returns:
        Whether some copies differed by more than rounding.

    Raises:
        Interrupted: The rendezvous broke.
    """
    rank, pieces = collective.rank, _pieces(shards)
    replicas = {
        number: Replica({"optimizer": _PartState(shards.slices, span)})
        for number, (span, holders, _) in enumerate(pieces)
        if rank in holders
    }
    digests = {number: replica.checksum() for number, replica in replicas.items()}
    found = _gathered(collective, digests, dict[int, str], "checksums of parts")
    apart = [
        number
        for number, (_, holders, _) in enumerate(pieces)
        if len({found[holder][number] for holder in holders}) > 1
    ]
    if not apart:
        return False
    own = {
        number: Described(
            *members[rank],
            digest=digests[number],
            entries=replica.entries(),
            sketches=replica.sketches(),
        )
        for number, replica in replicas.items()
        if number in apart
    }
    described = _gathered(collective, own, dict[int, Described], "entries of parts")
    healed, told = _what_is_healed(pieces, members, found, described)
    for words in told if rank == 0 else ():
        logger.error("%s the copies of a part of the optimizer's state differ: %s", when, words)
    send_all(collective, healed, shards.slices.give, shards.slices.put)
    return bool(healed)


def _what_is_healed(
    pieces: Sequence[HeldPiece],
    members: Sequence[Holder],
    digests: Sequence[dict[int, str]],
    described: Sequence[dict[int, Described]],
) -> tuple[list[Move], list[str]]:
    """What is sent to whom, and what to say of it, once for those who hold the same parts."""
    healed, told = [], {}
    for number in sorted({number for each in described for number in each}):
        span, holders, teller = pieces[number]
        comparison = ReplicaComparison([described[holder][number] for holder in holders])
        wrong = {each.worker for each in comparison.wrong(digests[teller][number])}
        takers = [holder for holder in holders if members[holder].worker in wrong]
        healed += [Move(span, teller, taker) for taker in takers]
        if takers:
            told[teller, *takers] = (
                f"{comparison.in_words(None)}: that of {members[teller].worker}, from which all "
                "have their parameters, is taken over"
            )
    return healed, list(told.values())


def _pieces(shards: ShardedOptimizer) -> list[HeldPiece]:
    """Blocks that several workers hold, with these and the one that tells the parameters."""
    return [
        HeldPiece(piece, holders, teller)
        for (_, holders), told in zip(shards.parts, contributors(shards.parts), strict=True)
        for pack in packs([told], CHECK_BLOCKS)
        for piece, teller in pack
        if len(holders) > 1
    ]


def _gathered(collective: Collective, own: Any, kind: Any, name: str) -> list[Any]:  # noqa: ANN401
    """What each member has of some pieces, in rank order."""
    payloads = gather_bytes(collective, msgspec.msgpack.encode(own), name)
    return [msgspec.msgpack.decode(payload, type=kind) for payload in payloads]
