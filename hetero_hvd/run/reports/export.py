"""A run's records for other programs: CSV, Parquet, OpenMetrics."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from hetero_hvd.core.view.metric_names import PREFIX
from hetero_hvd.errors import JobError
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.records.rollup import COLUMNS
from hetero_hvd.run.reports.series import Series, series_of

ALL_POINTS = 2**31
"""Nothing is averaged for a program that can read it all."""

EXTRA = "needs {package}: pip install 'hetero_hvd[{extra}]'"


def scalars(series: Series) -> Iterator[tuple[str, list[float | None]]]:
    """Name and values over the steps of all that was measured, `a/b/c` by what it is about."""
    yield "run/samples_per_second", series.throughput
    yield "run/loss", series.loss
    for worker, shares in series.shares.items():
        yield f"{worker}/local_batch_size", shares
    for worker, phases in series.phases.items():
        for phase, values in phases.items():
            yield f"{worker}/{phase}_seconds", values


def to_csv(run: Path) -> str:
    """Rollups per worker and 10 s; phases are sums of seconds over num_steps, unmeasured is empty.

    Raises:
        JobError: No run is recorded there.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(read_record(run).rollups)
    return stream.getvalue()


def to_parquet(run: Path, path: Path) -> None:
    """The same table as `to_csv`, with null for what was not measured.

    Raises:
        JobError: No run is recorded there, pyarrow is missing, or the file cannot be written.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, and slow to load
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise JobError(EXTRA.format(package="pyarrow", extra="parquet")) from error
    types = {"worker": pa.string(), "last_step": pa.int64(), "num_steps": pa.int64()}
    schema = pa.schema([(name, types.get(name, pa.float64())) for name in COLUMNS])
    rows = [
        row | {"num_steps": int(row["num_steps"]), "last_step": int(row["last_step"])}
        for row in read_record(run).rollups
    ]
    try:
        parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    except OSError as error:
        raise JobError(f"{path}: {error}") from error


def to_openmetrics(run: Path) -> str:
    """Text that `promtool tsdb create-blocks-from openmetrics` takes, with the times of the run.

    Names and labels are those of the live exporter where there is one of them. What was not
    measured is absent.

    Raises:
        JobError: No run is recorded there, or it was recorded without times.
    """
    series = series_of(run, max_points=ALL_POINTS)
    if series.steps and not all(series.at_unix_seconds):
        raise JobError(f"{run}: was recorded by an earlier version, without times")
    lines = []
    for name, labels, values in _families(series):
        if labels is None:
            lines.append(f"# TYPE {PREFIX}{name} gauge")
            continue
        pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
        known = zip(series.at_unix_seconds, values, strict=True)
        lines += [f"{PREFIX}{name}{{{pairs}}} {v:.9g} {at:.3f}" for at, v in known if v is not None]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _families(
    series: Series,
) -> Iterator[tuple[str, dict[str, str] | None, list[float | None]]]:
    """Name, labels and values, all of a name together; no labels: a name begins."""
    run = {"run_id": series.run_id}
    for name, values in (("samples_per_second", series.throughput), ("loss", series.loss)):
        yield name, None, []
        yield name, run, values
    yield "worker_local_batch_size", None, []
    for worker, shares in series.shares.items():
        yield "worker_local_batch_size", run | {"worker": worker}, shares
    yield "worker_phase_seconds", None, []
    for worker, phases in series.phases.items():
        for phase, values in phases.items():
            yield "worker_phase_seconds", run | {"worker": worker, "phase": phase}, values


def _escaped(value: str) -> str:
    """A label's value as OpenMetrics writes it: a folder may have any name."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
