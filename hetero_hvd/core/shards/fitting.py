"""How large a model fits into workers' memories, with an optimizer's state whole or in parts.

What the passes take of a model is not known before it is run: only a rest is left for them here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hetero_hvd.core.shards.cut import COPIES
from hetero_hvd.core.shards.rooms import ROOM_RATIO

MODEL_BYTES, STATE_BYTES = 8, 8
"""Of a parameter: itself and its gradient, and what Adam keeps of it, in float32."""

HALVINGS = 60
"""Of an interval, after which its ends are the same number."""


class Fitting(NamedTuple):
    """The largest models, in parameters.

    Attributes:
        whole: With the whole state on each worker.
        in_parts: With parts of it, each on two workers.
        smallest: The worker that decides over `whole`.
    """

    whole: int
    in_parts: int
    smallest: str


def largest_models(memories: Mapping[str, float]) -> Fitting:
    """The largest models that workers hold with Adam in float32.

    Args:
        memories: Worker to the bytes that it has; not empty.
    """
    smallest = min(memories, key=lambda worker: memories[worker])
    sizes = list(memories.values())
    whole = _largest(sizes, lambda rooms, state: min(rooms) >= state)
    return Fitting(whole, max(whole, _largest(sizes, _holds_parts)), smallest)


def _holds_parts(rooms: Sequence[float], state: float) -> bool:
    """Whether all together hold each part twice."""
    return sum(min(state, room) for room in rooms) >= min(COPIES, len(rooms)) * state


def _largest(sizes: Sequence[float], holds: Callable[[Sequence[float], float], bool]) -> int:
    """Of the numbers of parameters for which this is so the largest: it is for all below it."""
    low, high = 0.0, min(sizes) / MODEL_BYTES
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rooms = [ROOM_RATIO * (size - MODEL_BYTES * middle) for size in sizes]
        low, high = (middle, high) if holds(rooms, STATE_BYTES * middle) else (low, middle)
    return int(low)


def fitting_in_words(memories: Mapping[str, float]) -> tuple[str, str]:
    """What fits, a line for each way."""
    found, num = largest_models(memories), len(memories)
    least = f"{found.smallest} has least memory, {memories[found.smallest] / 2**30:.1f} GiB"
    whole = (
        f"fits whole: {found.whole / 1e6:.0f} million parameters with Adam in float32 on {num} "
        f"worker{'s' * (num > 1)}, {MODEL_BYTES + STATE_BYTES} bytes each on every one; {least}"
    )
    if num == 1:
        return whole, "fits in parts: the same, as one worker has all of it"
    in_parts = (
        f"fits in parts: {found.in_parts / 1e6:.0f} million with shard_optimizer=True or 'auto', "
        f"{MODEL_BYTES} bytes each on every worker and {STATE_BYTES} on two; the passes' own "
        "memory comes on top of both"
    )
    return whole, in_parts
