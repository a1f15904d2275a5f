"""What runs are called where several of them stand in a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def run_labels(names: Sequence[tuple[str, str]]) -> list[str]:
    """A label for each run, unlike all others as far as the folders are.

    Args:
        names: What its user calls each run, empty: nothing; and its folder, or its id.

    Returns:
        Its name; its folder where it has none; both where another run has the same name.
    """
    known = Counter(name for name, _ in names)
    return [
        folder if not name else name if known[name] == 1 else f"{name} ({folder})"
        for name, folder in names
    ]
