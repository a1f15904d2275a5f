"""`hetero-hvd export`: a run's rollups for other programs."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

SUMMARY = "write a run's timings, per worker and 10 s, as CSV"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("run", type=Path, metavar="RUN", help="output folder")
    command.add_argument("--format", choices=("csv",), default="csv", help="default: csv")


def act(arguments: argparse.Namespace) -> int:
    """Write to standard output; phases are sums of seconds over num_steps, unmeasured is empty."""
    from hetero_hvd.driver.records.reader import read_record  # noqa: PLC0415 - only this command
    from hetero_hvd.driver.records.rollup import COLUMNS  # noqa: PLC0415

    rows = read_record(arguments.run).rollups
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return 0
