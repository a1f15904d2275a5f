"""What holders of parts send each other: parameters after an update, and pieces of the state."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from hetero_hvd.core.shards.cut import Move, Shard, Span, contributors
from hetero_hvd.worker.comm.horovod import Collective
from hetero_hvd.worker.shards.element_wise import State
from hetero_hvd.worker.shards.members import packs
from hetero_hvd.worker.shards.slices import Layout, ShardPiece

PACK_BLOCKS, NUM_PACKS = 2**11, 2
"""Blocks of parameters that travel in one allgather: 2 MiB in float32; and how many are under way
at once: one is put in its place while the next one comes. An update takes them beside the state."""

MOST_PACK_BLOCKS = 2**14
"""16 MiB in float32. Each piece waits for all workers' processors, so that fewer take less time
where cores are short (measured: 0.60 s a step in place of 0.80 s)."""

LENGTH_BYTES = 8
"""Of the length in front of what `packed` gives."""


def pack_blocks(spare_bytes: float, block_bytes: float) -> int:
    """How many blocks of parameters travel in one allgather; the same on all workers.

    Args:
        spare_bytes: What every worker has left beside what it holds.
        block_bytes: Of the parameters in a block: a worker has each once to give and once to get.
    """
    more = spare_bytes / (2 * NUM_PACKS * block_bytes)
    return max(PACK_BLOCKS, int(min(PACK_BLOCKS + more, MOST_PACK_BLOCKS)))


def tell_parameters(
    collective: Collective,
    layout: Layout,
    parts: Sequence[Shard],
    num_blocks: int = 0,
    *,
    is_mine: bool = True,
) -> None:
    """Of each part one holder tells all what its parameters are; all members call it.

    Args:
        collective: The rendezvous.
        layout: Of the parameters.
        parts: Who holds what.
        num_blocks: In one allgather, alike on all members; 0: as few as every memory has room for.
        is_mine: Whether this worker takes it over.

    Raises:
        Interrupted: The rendezvous broke.
    """
    if collective.size == 1:
        return
    under_way: deque[tuple[list[tuple[Span, int]], Any]] = deque()
    for number, pack in enumerate(packs(contributors(parts), num_blocks or PACK_BLOCKS)):
        rows = layout.bytes_of([span for span, rank in pack if rank == collective.rank])
        name = f"shards.parameters.{number}"
        under_way.append((pack, collective.gather_rows_async(rows.view(-1, 1), name)))
        if len(under_way) == NUM_PACKS:
            _put(layout, *under_way.popleft(), collective, is_mine=is_mine)
    while under_way:
        _put(layout, *under_way.popleft(), collective, is_mine=is_mine)


def _put(
    layout: Layout,
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
    layout.put_bytes(spans, rows)


def hand_gradients(
    collective: Collective, parameters: Sequence[Parameter], source: int, *, takes: bool
) -> None:
    """Rank `source`'s gradients, for those who have not got the sums; all members call it.

    Args:
        collective: The rendezvous.
        parameters: Of the model, in the same order everywhere.
        source: Who has them.
        takes: Whether this worker takes them over.

    Raises:
        Interrupted: The rendezvous broke.
    """
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


def send_pieces(
    collective: Collective,
    sent: Mapping[int, Move],
    give: Callable[[Span], list[tuple[ShardPiece, State]]],
    take: Callable[[ShardPiece, State], None],
    name: str,
) -> None:
    """Each giver sends one piece of the state to one taker; all members call it.

    Args:
        collective: The rendezvous.
        sent: Rank of the giver to its move.
        give: Asked for copies of what this worker sends.
        take: Called with each piece that has come.
        name: Of the operation.

    Raises:
        Interrupted: The rendezvous broke.
    """
    rows, counts = torch.empty(0, dtype=torch.uint8), [0] * collective.size
    if collective.rank in sent:
        own = sent[collective.rank]
        rows = packed(give(own.span))
        counts[own.taker] = len(rows)
    for piece, state in unpacked(collective.exchange(rows, counts, name)):
        take(piece, state)


def one_of_each(moves: Sequence[Move]) -> dict[int, Move]:
    """The next move of each giver."""
    now: dict[int, Move] = {}
    for move in moves:
        now.setdefault(move.giver, move)
    return now


def send_all(
    collective: Collective,
    moves: Iterable[Move],
    give: Callable[[Span], list[tuple[ShardPiece, State]]],
    take: Callable[[ShardPiece, State], None],
) -> None:
    """See `send_pieces`: one piece of each giver after the other, until all have been sent."""
    left, number = list(moves), 0
    while left:
        now, number = one_of_each(left), number + 1
        send_pieces(collective, now, give, take, f"shards.all.{number % 2}")
        left = [move for move in left if move not in now.values()]


def collect(
    collective: Collective,
    told: Sequence[Sequence[tuple[Span, int]]],
    give: Callable[[Span], list[tuple[ShardPiece, State]]],
    take: Callable[[ShardPiece, State], None],
) -> None:
    """Rank 0 gets the whole state, piece by piece; all members call it.

    Args:
        collective: The rendezvous.
        told: What goes at once: the blocks of each rank that sends some.
        give: Asked for copies of what this worker sends.
        take: Called on rank 0 with each piece.

    Raises:
        Interrupted: The rendezvous broke.
    """
    for number, pack in enumerate(told):
        mine = [span for span, rank in pack if rank == collective.rank]
        rows = packed([each for span in mine for each in give(span)])
        counts = [len(rows), *[0] * (collective.size - 1)]
        got = collective.exchange(rows, counts, f"shards.collect.{number}")
        for piece, state in unpacked(got):  # nothing comes but to rank 0
            take(piece, state)


def packed(pieces: Sequence[tuple[ShardPiece, State]]) -> torch.Tensor:
    """As bytes on the host, 1-D uint8, with their length in front."""
    buffer = io.BytesIO()
    plain = [
        (
            piece.number,
            *piece.span,
            {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in state.items()},
        )
        for piece, state in pieces
    ]
    torch.save(plain, buffer)
    body = buffer.getvalue()
    content = len(body).to_bytes(LENGTH_BYTES, "little") + body
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def unpacked(payload: torch.Tensor) -> Iterator[tuple[ShardPiece, State]]:
    """The inverse of `packed`, for several one after the other.

    Nothing is unpickled that could run.
    """
    content, at = memoryview(payload.numpy().tobytes()), 0
    while at < len(content):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(content[at:begin], "little")
        plain: list[tuple[int, int, int, dict[str, Any]]] = torch.load(
            io.BytesIO(content[begin:at]), map_location="cpu", weights_only=True
        )
        for number, start, stop, state in plain:
            yield ShardPiece(number, Span(start, stop)), state
