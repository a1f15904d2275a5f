"""How much of the parameters travels at a time."""

import math

import pytest

from hetero_hvd.worker.shards import exchanges
from hetero_hvd.worker.shards.exchanges import NUM_PACKS, pack_blocks

BLOCK_BYTES = 1024
EACH_BYTES = 2 * NUM_PACKS * BLOCK_BYTES
"""What one more block in a piece takes of a memory."""


@pytest.mark.parametrize(
    ("spare_bytes", "wanted"),
    [
        (-(2**30), 100),  # a worker that takes smaller micro-batches has nothing to spare
        (0, 100),
        (EACH_BYTES - 1, 100),
        (EACH_BYTES, 101),
        (700 * EACH_BYTES, 800),
        (900 * EACH_BYTES, 1000),
        (2**40, 1000),
        (math.inf, 1000),  # no state: nothing of it takes memory
    ],
)
def test_pieces_are_as_large_as_the_smallest_room_allows(monkeypatch, spare_bytes, wanted):
    """From the least, which is counted in each room, to the most."""
    monkeypatch.setattr(exchanges, "PACK_BLOCKS", 100)
    monkeypatch.setattr(exchanges, "MOST_PACK_BLOCKS", 1000)
    assert pack_blocks(spare_bytes, BLOCK_BYTES) == wanted
