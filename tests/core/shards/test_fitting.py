"""How large a model fits is the number beyond which the rooms are too small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.shards.cut import NoRoom, loads
from hetero_hvd.core.shards.fitting import fitting_in_words, largest_models
from hetero_hvd.core.shards.rooms import ROOM_RATIO


def holds(sizes, num_parameters):
    """Whether the trainer would take it, in parts of a parameter each."""
    rooms = [int(ROOM_RATIO * (size - 8 * num_parameters) / 8) for size in sizes]
    if min(rooms) < 0:
        return False
    copies = min(2, len(rooms))
    try:
        return sum(loads(num_parameters, rooms, copies)) == copies * num_parameters
    except NoRoom:
        return False


@given(st.lists(st.integers(10**5, 10**8), min_size=1, max_size=6))
def test_the_trainer_takes_what_fits_and_no_more(sizes):
    """In parts; and whole it is what the smallest memory holds."""
    found = largest_models({f"w:{n}": size for n, size in enumerate(sizes)})
    assert holds(sizes, int(0.999 * found.in_parts) - 2)
    assert not holds(sizes, int(1.001 * found.in_parts) + 2)
    assert found.whole == pytest.approx(ROOM_RATIO * min(sizes) / (8 + ROOM_RATIO * 8), abs=1)
    assert found.whole <= found.in_parts <= min(sizes) / 8


@pytest.mark.parametrize(
    ("sizes", "whole", "in_parts"),
    [((16,), 1046, 1046), ((16, 16), 1046, 1046), ((24, 12, 8), 523, 879), ((8,) * 8, 523, 850)],
)
def test_each_way_is_told_in_a_line(sizes, whole, in_parts):
    """With the bytes that it takes and who decides."""
    memories = {f"n{number}:0": size * 2**30 for number, size in enumerate(sizes)}
    first, second = fitting_in_words(memories)
    assert first.startswith(f"fits whole: {whole} million parameters with Adam in float32 on ")
    assert f"{min(sizes)}.0 GiB" in first
    words = f"{in_parts} million with shard_optimizer=True" if len(sizes) > 1 else "the same"
    assert second.startswith(f"fits in parts: {words}")
