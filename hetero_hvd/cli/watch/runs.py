"""`hetero-hvd runs`: the recorded runs of a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from hetero_hvd.cli.lines import add_json, show, show_json
from hetero_hvd.config.paths import some_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "folder", nargs="?", type=some_path, default=Path("runs"), help="default: runs"
    )
    command.add_argument(
        "--where",
        default="",
        metavar="CONDITION",
        help="only those that fulfil it, such as 'accuracy > 0.9 and tag.lr < 0.2'",
    )
    command.add_argument(
        "--sort", default="", metavar="TERMS", help="their order, such as 'accuracy desc'"
    )
    add_json(command, "; unknown is null")


def act(arguments: argparse.Namespace) -> int:
    """Print a line for each run."""
    from hetero_hvd.errors import JobError  # noqa: PLC0415
    from hetero_hvd.run.reports.catalogue import choose, in_lines, recorded_runs  # noqa: PLC0415

    runs = recorded_runs(arguments.folder)
    if not runs:
        raise JobError(f"{arguments.folder}: no recorded run in it")
    if arguments.where or arguments.sort:
        runs = choose(runs, where=arguments.where, sort=arguments.sort)
    if arguments.json:
        show_json([run.as_dict() for run in runs])
        return 0
    for line in in_lines(runs):
        show(line)
    return 0
