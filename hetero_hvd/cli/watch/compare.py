"""`hetero-hvd compare`: how two runs differ."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.watch.run_argument import HELP, run_of

SUMMARY = "tell how two runs differ: settings, speed, loss, shares; of reproducible ones the bits"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("runs", nargs=2, type=run_of, metavar="RUN", help=HELP)


def act(arguments: argparse.Namespace) -> int:
    """Compare; 1 if the fingerprints of reproducible runs differ."""
    from hetero_hvd.run.records.writer import FILE as CATALOGUE  # noqa: PLC0415
    from hetero_hvd.run.reports.comparison import compare_runs  # noqa: PLC0415
    from hetero_hvd.run.reports.fingerprints import FILE, compare  # noqa: PLC0415 - only this command

    are_recorded = all((run / CATALOGUE).is_file() for run in arguments.runs)
    if are_recorded:
        for line in compare_runs(*arguments.runs):
            show(line)
        if not all((run / FILE).is_file() for run in arguments.runs):
            return 0
    found = compare(*arguments.runs)
    for line in found.lines:
        show(line)
    return 0 if found.are_equal else 1
