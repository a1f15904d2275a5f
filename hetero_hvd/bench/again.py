"""Whether a part that is measured a second time says the same: `scripts/bench --again PART`.

The spread that a row states is the range of its repeats. Two measurements agree if their ranges
meet. Where nothing has changed those of n repeats each lie apart in 2 of C(2n, n) cases (any order
of the 2n values being as likely as any other): one in ten for 3 repeats, one in 126 for 5.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hetero_hvd.bench.report import STORE
from hetero_hvd.bench.tables import Table, spread
from hetero_hvd.errors import UserError

FEWEST = 2
"""Repeats that have a spread."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A row that was measured twice.

    Attributes:
        title: Of its table.
        label: Its first cell.
        first: A value for each repeat, as kept.
        second: A value for each repeat, measured now.
    """

    title: str
    label: str
    first: Sequence[float]
    second: Sequence[float]

    @property
    def agrees(self) -> bool:
        """Whether the two ranges meet."""
        return min(self.first) <= max(self.second) and min(self.second) <= max(self.first)

    def __str__(self) -> str:
        """Both medians with their ranges."""
        told = [f"{median(values):.3g} ({spread(values)})" for values in (self.first, self.second)]
        verdict = "agrees" if self.agrees else "DIFFERS"
        return f"{self.title}, {self.label}: {told[0]}, again {told[1]}: {verdict}"


def kept_values(docs: Path, part: str) -> dict[str, dict[str, list[float]]]:
    """What is kept of a part: title of a table, label of a row, a value for each repeat.

    Raises:
        UserError: It was not measured yet, or with too few repeats to have a spread.
    """
    path = docs / STORE
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if part not in kept:
        raise UserError(f"{path}: holds no part {part!r}: run scripts/bench {part} first")
    found = {
        table["title"]: {
            label: values
            for label, values in table.get("measured", {}).items()
            if len(values) >= FEWEST
        }
        for table in kept[part]["tables"]
    }
    if not any(found.values()):
        raise UserError(
            f"{path}: part {part!r} states no spread: first run scripts/bench {part}, not --quick"
        )
    return found


def compare(
    kept: Mapping[str, Mapping[str, Sequence[float]]], tables: Sequence[Table]
) -> list[Pair]:
    """Every row that has a spread both times, in the order measured now."""
    return [
        Pair(title=table.title, label=label, first=kept[table.title][label], second=values)
        for table in tables
        for label, values in table.measured.items()
        if label in kept.get(table.title, {}) and len(values) >= FEWEST
    ]
