"""`hetero-hvd export`: a run's records for other programs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hetero_hvd.cli.watch.run_argument import HELP, run_of
from hetero_hvd.errors import JobError

SUMMARY = "write a run's records as CSV, Parquet, OpenMetrics, or to TensorBoard, W&B, MLflow"
FORMATS = ("csv", "parquet", "openmetrics", "tensorboard", "wandb", "mlflow")
TEXTS = ("csv", "openmetrics")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("run", type=run_of, metavar="RUN", help=HELP)
    command.add_argument("--format", choices=FORMATS, default="csv", help="default: csv")
    command.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="file to write (tensorboard: folder); csv and openmetrics: standard output without it",
    )


def act(arguments: argparse.Namespace) -> int:
    """Write it."""
    kind, run, output = arguments.format, arguments.run, arguments.output
    if output is None and kind in ("parquet", "tensorboard"):
        raise JobError(f"--format {kind} needs --output PATH")
    if kind in TEXTS:
        from hetero_hvd.run.reports import export  # noqa: PLC0415 - only this command

        text = export.to_csv(run) if kind == "csv" else export.to_openmetrics(run)
        _write(text, output)
    elif kind == "parquet":
        from hetero_hvd.run.reports.export import to_parquet  # noqa: PLC0415

        to_parquet(run, output)
    else:
        from hetero_hvd.run.reports import trackers  # noqa: PLC0415

        if kind == "tensorboard":
            trackers.to_tensorboard(run, output)
        else:
            {"wandb": trackers.to_wandb, "mlflow": trackers.to_mlflow}[kind](run)
    return 0


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise JobError(f"{output}: {error.strerror}") from error
