"""`hetero-hvd drain`: let a node of a running job go."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "let a node of a running job go, without losing a step"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("target", metavar="NODE[:SLOT]", help="who should leave")
    command.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="folder of the running job (default: the newest in runs/)",
    )


def act(arguments: argparse.Namespace) -> int:
    """Ask the job."""
    from hetero_hvd.driver import control  # noqa: PLC0415 - only this command needs it

    print(control.order(arguments.output or control.newest_run(), "drain", arguments.target))
    return 0
