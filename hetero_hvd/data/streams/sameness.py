"""Whether a stream is the same on all workers, as far as it can be told before it is read.

Each worker reads a stream of its own: where its order, or its share of it, differs from that of the
others, samples would be lost in silence.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from hetero_hvd.errors import UserError

logger = logging.getLogger(__name__)

MOST_SEED = 2**64
"""A generator without a seed draws one of 128 bits."""

NUM_COMPARED = 4
"""Samples at the beginning of a shard that are compared."""


def check_alike(stream: object, name: str) -> None:
    """See that what a stream of `datasets` is made of is the same on all workers.

    Args:
        stream: Of any package; of another one, nothing is seen.
        name: For what is said.

    Raises:
        UserError: It is divided already, or something in it is drawn without a seed.
    """
    if getattr(stream, "_distributed", None) is not None:
        raise UserError(
            f"{name}: split_dataset_by_node has given each worker samples of its own: leave it "
            "out, as the trainer divides each batch among the workers itself"
        )
    parts = list(_parts(stream))
    if any(map(_is_unseeded, parts)):
        raise UserError(
            f"{name}: is shuffled or interleaved without a seed, so in another order on each "
            "worker, and samples would be lost: say seed=0, or another one below 2**64"
        )
    if any(getattr(part, "split_when_sharding", False) for part in parts):
        logger.warning(
            "%s: take(n) and skip(n) count in each shard its part of n: what they give is not the "
            "beginning, or the rest, of the whole stream; see that nothing else takes that for it",
            name,
        )


def beginning(shard: Iterable[Any]) -> str:
    """A digest of how a shard begins: of texts, bytes and whole numbers in its first samples.

    Other numbers and pixels may differ in their last bits from machine to machine.

    Args:
        shard: Its samples, from the first one on.

    Returns:
        A tag for `FileFacts`; "" where there is nothing to compare.
    """
    samples = [list(_exact(sample)) for sample in itertools.islice(shard, NUM_COMPARED)]
    return f"crc32:{zlib.crc32(repr(samples).encode()):08x}" if any(samples) else ""


def _exact(value: Any) -> Iterator[object]:  # noqa: ANN401 - whatever a stream gives
    """What of a sample is the same on every machine."""
    if isinstance(value, str | bytes | int):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _exact(value[key])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _exact(each)
    elif isinstance(value, torch.Tensor | np.ndarray | np.generic):
        is_whole = str(value.dtype).removeprefix("torch.").startswith(("int", "uint16", "uint32"))
        if is_whole and value.itemsize > 1:
            yield value.tolist()


def _parts(stream: object) -> Iterator[object]:
    """The stages of a stream of `datasets`, as it keeps them."""
    left = [stream]
    while left:
        part = left.pop()
        yield part
        left += [
            each
            for name in ("_ex_iterable", "ex_iterable")
            if (each := getattr(part, name, None)) is not None
        ]
        left += getattr(part, "ex_iterables", None) or []


def _is_unseeded(part: object) -> bool:
    """Whether it draws numbers of its own on each worker."""
    shuffling = getattr(part, "_shuffling", None)  # before version 5 of datasets
    if shuffling is not None and getattr(shuffling, "_original_seed", 0) is None:
        return True
    generator = getattr(part, "generator", None)
    if not isinstance(generator, np.random.Generator):
        return False
    seed = getattr(generator.bit_generator.seed_seq, "entropy", 0)
    return isinstance(seed, int) and seed >= MOST_SEED
