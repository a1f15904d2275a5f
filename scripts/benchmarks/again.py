"""Whether a part that is measured a further time says the same: `scripts/bench --again PART`.

The spread that a row states is the range of all its turns, in all runs that were kept: turns that
follow each other say how steady the machine is within the hour, runs how it differs from hour to
hour. A further run agrees if its range meets that spread, and is kept with the others. Where
nothing has changed the ranges of n and m turns lie apart in 2 of C(n + m, n) cases (any order of
the values being as likely as any other): one in ten for 3 and 3, one in 42 for 3 and 6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import Table, median_of
from hetero_hvd.errors import UserError

STORE = Path("benchmarks", "results.json")
"""All that was measured, in the docs folder."""

FEWEST = 2
"""Turns that have a spread."""

Measured = Mapping[str, Mapping[str, Sequence[float]]]
"""Of a run: title of a table to label of a row to a value for each turn."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What several runs say about one quantity.

    Attributes:
        title: Of its table.
        label: What it is.
        runs: A value for each turn of each run, the oldest first; empty where a run has none.
    """

    title: str
    label: str
    runs: Sequence[Sequence[float]]

    @property
    def agrees(self) -> bool | None:
        """Whether the range of the newest run meets that of the others; None: cannot be told."""
        earlier = [value for run in self.runs[:-1] for value in run]
        newest = self.runs[-1]
        if len(earlier) < FEWEST or len(newest) < FEWEST:
            return None
        return min(earlier) <= max(newest) and min(newest) <= max(earlier)

    @property
    def cells(self) -> list[str]:
        """Label, then median and range of each run."""
        return [self.label, *(median_of(run) if run else "" for run in self.runs)]


def measured_of(tables: Sequence[Table]) -> dict[str, dict[str, list[float]]]:
    """What a run has measured."""
    return {table.title: table.measured for table in tables if table.measured}


def rows_of(runs: Sequence[Measured]) -> list[Row]:
    """Every quantity of the newest run that an earlier one has too."""
    return [
        Row(title=title, label=label, runs=[run.get(title, {}).get(label, []) for run in runs])
        for title, found in runs[-1].items()
        for label in found
        if any(run.get(title, {}).get(label) for run in runs[:-1])
    ]


def kept_runs(docs: Path, part: str) -> list[dict[str, Any]]:
    """The runs that are kept of a part, the oldest first: `header` and `measured` of each.

    Raises:
        UserError: It was not measured yet, or with too few turns to have a spread.
    """
    path = docs / STORE
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if part not in kept:
        raise UserError(f"{path}: holds no part {part!r}: run scripts/bench {part} first")
    runs: list[dict[str, Any]] = kept[part]["runs"]
    lists = [values for run in runs for of in run["measured"].values() for values in of.values()]
    if max(map(len, lists), default=0) < FEWEST:
        raise UserError(
            f"{path}: part {part!r} states no spread: first run scripts/bench {part}, not --quick"
        )
    return runs
