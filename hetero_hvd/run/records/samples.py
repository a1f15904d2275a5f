"""What nodes and GPUs did, as one row for each and interval; so many rows that a disk bears them.

When there are too many, the intervals of all rows are doubled: a long run is told in less detail,
and none of it is forgotten. Means stay means and the largest values stay, whatever was merged.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from typing import Any

from hetero_hvd.messages import DeviceSample, NodeSampled

INTERVAL_SECONDS = 10.0
MAX_ROWS = 100_000
"""About 40 MB. A node and its GPU fill them in 6 days, ten nodes of 8 GPUs in 3 hours."""

MAX_INTERVAL_SECONDS = 86400.0
"""Longer ones would not tell anything any more."""

MAX_WORDS = 64
"""Of one kind in a row, such as processes that have used a GPU."""

_ENOUGH_RATIO = 0.75
"""Of the rows, left by one thinning: the next one is not due at once."""

THE_NODE = -1
"""In the column `device`."""

_NODE_FIGURES = {
    "use_ratio": "cpu_use_ratio",
    "load": "load",
    "memory_used_bytes": "memory_used_bytes",
    "temperature_celsius": "cpu_temperature_celsius",
    "power_watts": "package_power_watts",
    "network_received_bytes_per_second": "network_received_bytes_per_second",
    "network_sent_bytes_per_second": "network_sent_bytes_per_second",
    "disk_read_bytes_per_second": "disk_read_bytes_per_second",
    "disk_written_bytes_per_second": "disk_written_bytes_per_second",
}
_DEVICE_FIGURES = {
    name: name
    for name in (
        "use_ratio",
        "memory_used_bytes",
        "temperature_celsius",
        "power_watts",
        "sm_clock_hertz",
        "pcie_received_bytes_per_second",
        "pcie_sent_bytes_per_second",
        "nvlink_received_bytes_per_second",
        "nvlink_sent_bytes_per_second",
        "dram_active_ratio",
    )
}
"""Column, without `_mean` or `_max`, to the field of a sample."""

_FIGURES = tuple(dict.fromkeys((*_NODE_FIGURES, *_DEVICE_FIGURES)))
_KEY = ("at_unix_seconds", "node", "device", "uuid")
_COUNTERS = ("energy_joules", "throttled_seconds", "ecc_uncorrected", "num_xids")
_WORDS = ("machine_id", "throttle_reasons", "used_by")
COLUMNS = (
    *_KEY,
    "seconds",
    "num_samples",
    *_COUNTERS,
    *_WORDS,
    *(f"{name}_{kind}" for name in _FIGURES for kind in ("mean", "max")),
)
"""`at_unix_seconds` is that of the first sample, or the beginning of a merged one; `seconds` the
time to the last sample, or to the end of a merged one; counters are those at its end; words all
that was so."""

SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS samples ({', '.join(COLUMNS)}, PRIMARY KEY ({', '.join(_KEY)}))"
)
TEXTS = ("node", "uuid", *_WORDS)
"""Columns of texts; all others are numbers."""

_INSERT = (
    f"INSERT OR REPLACE INTO samples ({', '.join(COLUMNS)}) "  # noqa: S608 - no data
    f"VALUES ({', '.join('?' * len(COLUMNS))})"
)


def rows_of(node: str, at_unix_seconds: float, sample: NodeSampled) -> Iterator[dict[str, Any]]:
    """One sample as rows of its node and each GPU: key and means; what was not measured is NaN."""
    told: list[tuple[int, str, NodeSampled | DeviceSample, dict[str, str]]]
    told = [(THE_NODE, "", sample, _NODE_FIGURES)]
    told += [(gpu.index, gpu.uuid, gpu, _DEVICE_FIGURES) for gpu in sample.devices]
    for device, uuid, source, figures in told:
        key = dict(zip(_KEY, (at_unix_seconds, node, device, uuid), strict=True))
        yield key | {f"{name}_mean": getattr(source, field) for name, field in figures.items()}


class SampleTable:
    """Writes the rows of a run, of ten seconds each; the death of its process costs no more.

    When there are too many, they are merged, and later ones with them.

    Args:
        connection: Of the run's catalogue, inside a transaction; used by its thread only.
        max_rows: See `MAX_ROWS`.
    """

    def __init__(self, connection: sqlite3.Connection, *, max_rows: int = MAX_ROWS) -> None:
        self._connection = connection
        self._max_rows = max_rows
        connection.create_aggregate("all_words", 1, _AllWords)  # type: ignore[arg-type] # of texts
        (longest,) = connection.execute("SELECT MAX(seconds) FROM samples").fetchone()
        self._interval_seconds: float = max(longest or 0.0, INTERVAL_SECONDS)
        (self._num_rows,) = connection.execute("SELECT COUNT(*) FROM samples").fetchone()
        self._open: dict[str, dict[tuple[int, str], _SampleRow]] = {}
        self._begins: dict[str, tuple[float, float]] = {}
        self._newest: dict[str, float] = {}

    def add(self, at_unix_seconds: float, sample: NodeSampled) -> None:
        """Take a sample in.

        Args:
            at_unix_seconds: When it was heard of, by the driver's clock: nodes' clocks differ.
            sample: Of a node.
        """
        interval = at_unix_seconds // INTERVAL_SECONDS
        if sample.node in self._begins and self._begins[sample.node][0] != interval:
            self._write(sample.node)
        self._begins.setdefault(sample.node, (interval, at_unix_seconds))
        self._newest[sample.node] = at_unix_seconds
        rows = self._open.setdefault(sample.node, {})
        rows.setdefault((THE_NODE, ""), _SampleRow(_NODE_FIGURES)).add(
            sample,
            energy_joules=sample.package_energy_joules,
            throttled_seconds=math.nan,
            ecc_uncorrected=math.nan,
            num_xids=math.nan,
            machine_id={sample.machine_id},
        )
        for gpu in sample.devices:
            rows.setdefault((gpu.index, gpu.uuid), _SampleRow(_DEVICE_FIGURES)).add(
                gpu,
                energy_joules=gpu.energy_joules,
                throttled_seconds=math.fsum(gpu.throttled_seconds.values()),
                ecc_uncorrected=gpu.ecc_uncorrected,
                num_xids=gpu.num_xids,
                machine_id={sample.machine_id},
                throttle_reasons=set(gpu.throttle_reasons),
                used_by=set(map(str, gpu.used_by)),
            )

    def close(self) -> None:
        """Write the intervals that are not over."""
        for node in list(self._open):
            self._write(node)

    def _write(self, node: str) -> None:
        _, at_unix_seconds = self._begins.pop(node)
        seconds = max(0.0, self._newest[node] - at_unix_seconds)
        rows = [
            (at_unix_seconds, node, *device, seconds, *row.values())
            for device, row in self._open.pop(node).items()
        ]
        self._connection.executemany(_INSERT, rows)
        self._num_rows += len(rows)
        if self._num_rows > self._max_rows:
            self._merge(self._interval_seconds)
            while self._num_rows > _ENOUGH_RATIO * self._max_rows and not self._is_coarsest:
                self._merge(2 * self._interval_seconds)

    @property
    def _is_coarsest(self) -> bool:
        return self._interval_seconds > MAX_INTERVAL_SECONDS

    def _merge(self, seconds: float) -> None:
        """Make one row of those that begin in an interval of so many seconds.

        What is written later of the present interval has a row of its own, as it begins later.
        """
        key = f"CAST(at_unix_seconds / {seconds} AS INTEGER) * {seconds}"
        merged = ", ".join(_merged(column, key, seconds) for column in COLUMNS)
        self._connection.execute(
            f"CREATE TEMP TABLE merged AS SELECT {merged} FROM samples "  # noqa: S608 - no data
            f"GROUP BY {key}, node, device, uuid ORDER BY at_unix_seconds"
        )
        self._connection.execute("DELETE FROM samples")
        self._connection.execute("INSERT INTO samples SELECT * FROM merged")
        (self._num_rows,) = self._connection.execute("SELECT COUNT(*) FROM samples").fetchone()
        self._connection.execute("DROP TABLE merged")
        self._interval_seconds = seconds  # not before: a full disk takes none of it


class _SampleRow:
    """One interval of a node or GPU."""

    def __init__(self, figures: dict[str, str]) -> None:
        self._figures = figures
        self._num_samples = 0
        self._sums: dict[str, list[float]] = {name: [] for name in figures}
        self._counters: dict[str, float] = dict.fromkeys(_COUNTERS, math.nan)
        self._words: dict[str, set[str]] = {name: set() for name in _WORDS}

    def add(self, sample: NodeSampled | DeviceSample, **further: Any) -> None:  # noqa: ANN401
        """Take a sample in; a figure that was not told is left out of its mean."""
        self._num_samples += 1
        for name, field in self._figures.items():
            value = getattr(sample, field)
            if math.isfinite(value):
                self._sums[name].append(value)
        for name, value in further.items():
            if name in self._words:
                self._words[name] |= value
            else:
                self._counters[name] = value

    def values(self) -> Iterator[Any]:
        """From `num_samples` on, in the order of the columns; None for what was not told."""
        yield self._num_samples
        for value in self._counters.values():
            yield value if math.isfinite(value) else None
        for words in self._words.values():
            yield ", ".join(sorted(words - {""})) or None
        for name in _FIGURES:
            told = self._sums.get(name, [])
            yield math.fsum(told) / len(told) if told else None
            yield max(told, default=None)


def _merged(column: str, key: str, seconds: float) -> str:
    """How a column of several intervals becomes that of one."""
    if column == "at_unix_seconds":
        return f"{key} AS at_unix_seconds"
    if column in _KEY:
        return column
    if column == "seconds":
        return f"{seconds} AS seconds"
    if column == "num_samples":
        return "SUM(num_samples) AS num_samples"
    if column.endswith("_mean"):
        weight = f"SUM(CASE WHEN {column} IS NULL THEN 0 ELSE num_samples END)"
        return f"SUM({column} * num_samples) / {weight} AS {column}"
    merge = "all_words" if column in _WORDS else "MAX"  # a counter grows
    return f"{merge}({column}) AS {column}"


class _AllWords:
    """An aggregate function of SQLite: all the words of some rows, each once."""

    def __init__(self) -> None:
        self._words: set[str] = set()

    def step(self, words: str | None) -> None:
        """Take in those of a row."""
        self._words |= set(words.split(", ")) if words else set()

    def finalize(self) -> str | None:
        """All of them, as far as there is room."""
        return ", ".join(sorted(self._words)[:MAX_WORDS]) or None
