"""`hetero-hvd runs`: the recorded runs of a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from hetero_hvd.cli.lines import add_json, show, show_json
from hetero_hvd.cli.table import print_columns
from hetero_hvd.cli.watch.run_filters import add_filters, chosen
from hetero_hvd.config.paths import some_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "folder", nargs="?", type=some_path, default=Path("runs"), help="default: runs"
    )
    add_filters(command)
    add_json(command, "; unknown is null")


def act(arguments: argparse.Namespace) -> int:
    """Print a table with a line for each run."""
    from hetero_hvd.run.reports.catalogue import HEADINGS, LEFT_OUT_FIRST, in_table  # noqa: PLC0415

    runs = chosen(arguments.folder, arguments)
    if arguments.json:
        show_json([run.as_dict() for run in runs])
        return 0
    left_out = print_columns(HEADINGS, in_table(runs), left_out_first=LEFT_OUT_FIRST)
    if left_out:
        show(f"(no room for {', '.join(left_out)}: | less -S shows all)")
    return 0
