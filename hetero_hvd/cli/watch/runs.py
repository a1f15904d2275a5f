"""`hetero-hvd runs`: the recorded runs of a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from hetero_hvd.cli.lines import show

SUMMARY = "list the recorded runs of a folder with state, speed and verdict"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="default: runs")


def act(arguments: argparse.Namespace) -> int:
    """Print a line for each run; one that cannot be read does not hide the others."""
    from hetero_hvd.errors import JobError  # noqa: PLC0415
    from hetero_hvd.run.records.reader import read_record  # noqa: PLC0415 - only this command
    from hetero_hvd.run.records.writer import FILE  # noqa: PLC0415
    from hetero_hvd.run.reports.facts import facts_of  # noqa: PLC0415

    found = sorted(arguments.folder.glob(f"*/{FILE}"))
    if not found:
        raise JobError(f"{arguments.folder}: no recorded run in it")
    for path in found:
        try:
            facts = facts_of(read_record(path.parent))
        except JobError as error:
            show(f"{path.parent.name}  {error}")
            continue
        speed = facts.samples_per_second
        shown = f"{speed:.0f} samples/s" if speed > 0 else "speed not measured"
        show(f"{path.parent.name}  {facts.state}  {shown}  {facts.findings[0].words}")
    return 0
