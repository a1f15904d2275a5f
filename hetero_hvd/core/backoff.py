"""How long to wait before something that has failed is tried again."""

from __future__ import annotations

MAX_DOUBLINGS = 1000
"""A float holds no larger powers of two, and no limit is that large."""


def doubled(first_seconds: float, num_doublings: int, most_seconds: float) -> float:
    """A time that doubles from failure to failure, up to a limit.

    Args:
        first_seconds: Before the first doubling, >= 0.
        num_doublings: How often it has doubled, >= 0; it may grow for ever.
        most_seconds: The limit.
    """
    return min(first_seconds * 2.0 ** min(num_doublings, MAX_DOUBLINGS), most_seconds)


def jittered(first_seconds: float, longest_seconds: float, chance: float) -> float:
    """A time between two others, so that many who have failed at once come back one by one.

    Args:
        first_seconds: The shortest.
        longest_seconds: The longest.
        chance: Drawn evenly from 0 to 1.
    """
    return first_seconds + chance * (longest_seconds - first_seconds)
