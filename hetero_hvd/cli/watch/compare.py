"""`hetero-hvd compare`: how two runs differ."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.watch.run_argument import HELP, run_of
from hetero_hvd.errors import JobError, UserError

SUMMARY = (
    "tell how runs differ: what was tried, metrics, loss, speed; of reproducible ones the bits"
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("runs", nargs="+", type=run_of, metavar="RUN", help=HELP)


def act(arguments: argparse.Namespace) -> int:
    """Compare; 1 if the fingerprints of reproducible runs differ."""
    from hetero_hvd.run.records.writer import FILE as CATALOGUE  # noqa: PLC0415
    from hetero_hvd.run.reports.comparison import compare_runs  # noqa: PLC0415
    from hetero_hvd.run.reports.fingerprints import FILE, compare  # noqa: PLC0415 - only this command

    runs = arguments.runs
    if len(runs) == 1:
        raise UserError(f"{runs[0]}: name at least one other run to compare it with")
    recorded = [run for run in runs if (run / CATALOGUE).is_file()]
    absent = next((run for run in runs if not run.exists()), None)
    if absent is not None:
        raise JobError(f"{absent}: No such file or directory; name the {HELP}")
    if recorded == runs:
        for line in compare_runs(runs):
            show(line)
        if len(runs) > 2 or not all((run / FILE).is_file() for run in runs):  # noqa: PLR2004
            return 0
    found = compare(*runs[:2])
    for line in found.lines:
        show(line)
    return 0 if found.are_equal else 1
