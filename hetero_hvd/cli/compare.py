"""`hetero-hvd compare`: where two runs differ."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "tell the first step at which two reproducible runs differ"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="output folder")


def act(arguments: argparse.Namespace) -> int:
    """Compare; 1 if they differ."""
    from hetero_hvd.driver.compare import compare  # noqa: PLC0415 - only this command needs it

    found = compare(*arguments.runs)
    print("\n".join(found.lines))
    return 0 if found.are_equal else 1
