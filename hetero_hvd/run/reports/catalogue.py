"""Many recorded runs as a table that can be asked: which had what result, with which tags?

The question is a condition of SQLite's own language, on a table in memory that holds nothing else.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from hetero_hvd.core.view.quality import duration, finite
from hetero_hvd.core.view.run_labels import run_labels
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.run.records.parts import parts_of, read_run
from hetero_hvd.run.records.writer import FILE
from hetero_hvd.run.reports.costs import Costs, costs_of
from hetero_hvd.run.reports.facts import RunFacts, facts_of

MAX_QUESTION_SECONDS = 10.0
STEPS_PER_LOOK = 10_000
COLUMNS = (
    "folder",
    "name",
    "state",
    "started",
    "steps",
    "train_loss",
    "samples_per_second",
    "cost",
    "unpriced",
    "joules",
    "outcome",
    "duration_seconds",
)
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


class RecordedRun(NamedTuple):
    """One run of a folder.

    Attributes:
        folder: Its own.
        facts: None: it cannot be read.
        problem: Why not.
        costs: None: it cannot be read.
    """

    folder: Path
    facts: RunFacts | None
    problem: str = ""
    costs: Costs | None = None

    @property
    def row(self) -> dict[str, Any]:
        """Column to value, without tags and metrics; None: unknown."""
        if self.facts is None:
            return {"folder": self.folder.name, "state": self.problem, "outcome": self.outcome}
        facts = self.facts
        started = _started(facts.started_at)
        speed = facts.samples_per_second
        return {
            "folder": self.folder.name,
            "name": facts.name or None,
            "state": facts.state,
            "started": started,
            "steps": facts.steps,
            "train_loss": finite(facts.train_loss),
            "samples_per_second": None if math.isnan(speed) else speed,
            "outcome": self.outcome,
            "duration_seconds": finite(facts.duration_seconds),
        } | self._spent()

    @property
    def name(self) -> str:
        """What its user calls it; empty: nothing."""
        return "" if self.facts is None else self.facts.name

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`."""
        return "unreadable" if self.facts is None else self.facts.outcome

    def _spent(self) -> dict[str, Any]:
        if self.costs is None:
            return {}
        bill = self.costs.run.bill
        unpriced = ", ".join(bill.unpriced) or None
        return {"cost": bill.cost, "unpriced": unpriced, "joules": self.costs.run.joules}

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        found = dict.fromkeys(COLUMNS) | self.row
        if self.facts is not None:
            found |= {"tags": self.facts.tags, "metrics": self.facts.metrics}
            found["verdict"] = [str(finding) for finding in self.facts.findings]
        return found


def _started(at_unix_seconds: float) -> str | None:
    """A time as text; None where it is none."""
    try:
        return f"{datetime.fromtimestamp(at_unix_seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return None


def recorded_runs(folder: Path) -> list[RecordedRun]:
    """The runs in a folder, by name; one that cannot be read does not hide the others."""
    found = []
    taken: set[Path] = set()
    for path in sorted(file.parent for file in folder.glob(f"*/{FILE}")):
        if path in taken:  # it is a part of one before it
            continue
        taken.update(parts_of(path))
        try:
            found.append(recorded_run(path))
        except JobError as error:
            found.append(RecordedRun(path, None, str(error)))
    return found


def recorded_run(folder: Path) -> RecordedRun:
    """One run.

    Raises:
        JobError: It cannot be read.
    """
    record = read_run(folder)
    return RecordedRun(folder, facts_of(record), costs=costs_of(record))


def matching(
    runs: Sequence[RecordedRun], *, name: str, tags: Sequence[tuple[str, str | None]], state: str
) -> list[RecordedRun]:
    """Those of a name, with tags, in a state.

    Args:
        runs: All.
        name: Of the run or its folder; where none is called so, a pattern of both, as a shell has
            it: `lr[0.1]` is a name, too. Empty: any.
        tags: Name and value of each tag that it has; None: any value.
        state: One of `OUTCOMES`; empty: any.
    """

    def has(run: RecordedRun, tag: str, value: str | None) -> bool:
        own = {} if run.facts is None else run.facts.tags
        return tag in own and value in (None, own[tag])

    is_name = any(name in (run.name, run.folder.name) for run in runs)
    is_called = str.__eq__ if is_name else fnmatchcase
    return [
        run
        for run in runs
        if (not name or any(is_called(own, name) for own in (run.name, run.folder.name)))
        and state in ("", run.outcome)
        and all(has(run, tag, value) for tag, value in tags)
    ]


def choose(runs: Sequence[RecordedRun], *, where: str, sort: str) -> list[RecordedRun]:
    """Those that fulfil a condition, in an order.

    Args:
        runs: All.
        where: On `COLUMNS`, `tag.NAME` and `metric.NAME`, in SQLite's language; empty: all.
        sort: Terms of the same kind, as after ORDER BY; empty: as they are.

    Raises:
        UserError: The condition or the order cannot be understood; says why, and which columns
            there are.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        facts = [run.facts for run in runs]
        tags = [dict(found.tags) if found else {} for found in facts]
        metrics = [dict(found.metrics) if found else {} for found in facts]
        key = _key([*(name for row in tags for name in row), *(n for row in metrics for n in row)])
        names = {
            "run": _fill(connection, "run", key, [run.row for run in runs], COLUMNS),
            "tag": _fill(connection, "tag", key, tags),
            "metric": _fill(connection, "metric", key, metrics),
        }
        order = f" ORDER BY {sort}" if sort else ""
        question = (
            f"SELECT run.{key} FROM run JOIN tag USING ({key}) "  # noqa: S608 - see below
            f"JOIN metric USING ({key}) WHERE ({where or 'TRUE'}){order}"
        )
        # Whatever the question is: it reads these tables, for so long, and nothing else.
        connection.set_authorizer(_may_read)
        deadline = time.monotonic() + MAX_QUESTION_SECONDS
        connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_PER_LOOK)
        try:
            return [runs[_checked(number, runs)] for (number,) in connection.execute(question)]
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: no text
            columns = [*names["run"], *(f"tag.{name}" for name in names["tag"])]
            columns += [f"metric.{name}" for name in names["metric"]]
            raise UserError(
                f"--where, --sort: {error}; there are {', '.join(columns)}, in SQLite's language, "
                "such as 'accuracy > 0.9 AND tag.lr < 0.2'"
            ) from error


def _key(names: Iterable[str]) -> str:
    """A column that none of these names is, quoted: `rowid` may be a tag."""
    return f'"{"#" * (1 + max(map(len, names), default=0))}"'


def _checked(number: object, runs: Sequence[RecordedRun]) -> int:
    """Index of a run; a question may select anything else.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(number, int) or not 0 <= number < len(runs):
        raise ValueError("this selects what is no run")
    return number


def _fill(
    connection: sqlite3.Connection,
    table: str,
    key: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Iterable[str] = (),
) -> list[str]:
    """Make a table; gives the names of its columns. Text that is a number counts as one.

    To SQLite names that differ in their capitals alone are one: they have a column together.
    """
    found: dict[str, str] = {}
    for name in (*columns, *(name for row in rows for name in row)):
        found.setdefault(_folded(name), name)
    quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in found.values()]
    declared = ", ".join([key, *(f"{name} NUMERIC" for name in quoted)])
    connection.execute(f"CREATE TABLE {table} ({declared})")
    marks = ", ".join("?" * (1 + len(found)))
    values = ({_folded(name): value for name, value in row.items()} for row in rows)
    connection.executemany(
        f"INSERT INTO {table} VALUES ({marks})",  # noqa: S608 - a name of ours, and marks
        ((number, *map(row.get, found)) for number, row in enumerate(values)),
    )
    return list(found.values())


def _folded(name: str) -> str:
    """As SQLite compares names: it knows the capitals of ASCII."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _may_read(action: int, *about: str | None) -> int:
    is_allowed = action in _ALLOWED and "load_extension" not in about
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


HEADINGS = (
    "run",
    "state",
    "started (UTC)",
    "duration",
    "steps",
    "results",
    "samples/s",
    "cost",
    "tags",
    "verdict",
)
LEFT_OUT_FIRST = ("tags", "cost", "verdict", "samples/s", "steps", "duration", "results")
"""Columns of the table, in the order in which they go where there is no room."""


def in_table(runs: Sequence[RecordedRun]) -> list[tuple[str, ...]]:
    """A row for each run, with a cell for each of `HEADINGS`; empty: not known."""
    labels = run_labels([(run.name, run.folder.name) for run in runs])
    return [(label, run.outcome, *_cells(run)) for label, run in zip(labels, runs, strict=True)]


def _cells(run: RecordedRun) -> tuple[str, ...]:
    """Of a row, without what it is called and how it stands."""
    facts = run.facts
    if facts is None:
        return ("", "", "", "", "", "", "", run.problem)
    results = [f"{name} {value:.4g}" for name, value in facts.metrics.items()]
    results += [] if math.isnan(facts.train_loss) else [f"train_loss {facts.train_loss:.4g}"]
    speed, seconds = facts.samples_per_second, facts.duration_seconds
    verdict = facts.findings[0].words
    return (
        (_started(facts.started_at) or "")[: len("2026-11-21 04:10")],
        duration(seconds) if math.isfinite(seconds) else "",
        str(facts.steps),
        ", ".join(results),
        f"{speed:.0f}" if speed > 0 else "",
        "" if run.costs is None else _cost(run.costs),
        " ".join(f"{name}={value}" for name, value in facts.tags.items()),
        f"{facts.state}; {verdict}" if facts.outcome == "failed" else verdict,
    )


def _cost(costs: Costs) -> str:
    """Empty where no node has a price; a + where some have none."""
    bill = costs.run.bill
    return "" if bill.cost is None else f"{bill.cost:.4g}{'+' if bill.unpriced else ''}"
