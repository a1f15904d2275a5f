"""What is heard and not used is told, and remembered within bounds."""

from __future__ import annotations

import pytest

from hetero_hvd.discovery.receiver import IN_WORDS, MAX_SAID, AdvertReceiver

REASONS = {
    "one again and again": lambda _number: "stale",
    "another name in each": lambda number: f"another machine has the name or a GPU of n{number}",
}


@pytest.mark.parametrize("kind", REASONS)
def test_complaints_are_told_once_and_take_no_room_without_end(kind):
    """Whoever has the key may announce any number of names."""
    said = []
    receiver = AdvertReceiver(bytes(32), 0, said.append)
    for number in range(50 * MAX_SAID):
        receiver.complain("10.0.0.9", REASONS[kind](number))
    assert len(said) == (MAX_SAID if "name" in kind else 1)
    assert len(receiver._complaints) <= MAX_SAID
    assert all(line.startswith("an advert from 10.0.0.9 is not used: ") for line in said)
    assert (IN_WORDS["stale"] in said[0]) is ("name" not in kind)
