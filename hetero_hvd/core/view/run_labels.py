"""What runs are called where several of them stand in a list."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import count


def run_labels(names: Sequence[tuple[str, str]]) -> list[str]:
    """A label for each run, unlike all others.

    Args:
        names: What its user calls each run, empty: nothing; and its folder, or its id.

    Returns:
        Its name; its folder where it has none; both where another run has the same label; a number
        behind it where that one has both, too.
    """
    short = [name or folder for name, folder in names]
    full = [f"{name} ({folder})" if name else folder for name, folder in names]
    labels: list[str] = []
    while labels != short:  # one that is made longer may be like another one
        labels = short
        known = Counter(labels)
        short = [
            wide if known[label] > 1 else label for label, wide in zip(labels, full, strict=True)
        ]
    return _numbered(labels)


def _numbered(labels: Sequence[str]) -> list[str]:
    """The first of those that are alike as it is, the others with numbers from 2 on."""
    taken = set(labels)
    numbers: defaultdict[str, count[int]] = defaultdict(lambda: count(2))
    found, seen = [], set[str]()
    for label in labels:
        mine = label
        if label in seen:
            mine = next(more for n in numbers[label] if (more := f"{label} #{n}") not in taken)
        seen.add(mine)
        taken.add(mine)
        found.append(mine)
    return found
