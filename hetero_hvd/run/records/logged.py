"""What was logged, as rows: one for each name and time at which it was told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from hetero_hvd.messages import Logged, LoggedValue

COLUMNS = {
    "at_unix_seconds": float,
    "name": str,
    "step": int,
    "count": int,
    "mean": float,
    "minimum": float,
    "maximum": float,
    "last": float,
    "told_step": int,
    "epoch": int,
    "remaining_steps": int,
}
"""Those of the table `logged`, without `id`, with what they hold; NaN is NULL there."""

ADDED = ("remaining_steps",)
"""Those that a run of an earlier version has not, or not in all rows."""

SCHEMA = f"CREATE TABLE IF NOT EXISTS logged (id INTEGER PRIMARY KEY, {', '.join(COLUMNS)});"


def rows_of(at_unix_seconds: float, event: Logged) -> Iterator[tuple[Any, ...]]:
    """What to write, in the order of the columns.

    Args:
        at_unix_seconds: When it was heard.
        event: What was told.
    """
    for name, found in event.values.items():
        told = (found.mean, found.minimum, found.maximum, found.last)
        at = event.step, event.epoch, event.remaining_steps
        yield at_unix_seconds, name, found.step, found.count, *told, *at


def events_of(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[float, Logged]]:
    """What was told, from all that was written of it, in order.

    Raises:
        ValueError: A row is none of this table.
    """
    for (at_unix_seconds, step, epoch, left), found in groupby(map(_checked, rows), _told_at):
        values = {
            row["name"]: LoggedValue(
                step=row["step"],
                count=row["count"],
                **{key: _number(row[key]) for key in ("mean", "minimum", "maximum", "last")},
            )
            for row in found
        }
        told = Logged(step=step, epoch=epoch, values=values)
        yield at_unix_seconds, told if left is None else replace(told, remaining_steps=left)


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    for name, kind in COLUMNS.items():
        value = row.get(name)
        may_miss = name in ADDED or (kind is float and name != "at_unix_seconds")
        if not isinstance(value, kind) and not (value is None and may_miss):
            raise ValueError(f"{name!r} of a row of 'logged' is no such value")
    return row


def _told_at(row: dict[str, Any]) -> tuple[float, int, int, int | None]:
    return row["at_unix_seconds"], row["told_step"], row["epoch"], row.get("remaining_steps")


def _number(value: float | None) -> float:
    return math.nan if value is None else value
