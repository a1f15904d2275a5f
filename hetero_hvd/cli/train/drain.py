"""`hetero-hvd drain`: let a node of a running job go."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.train import orders


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("target", metavar="NODE[:SLOT]", help="who should leave")
    orders.add_run(command)


def act(arguments: argparse.Namespace) -> int:
    """Ask the job."""
    return orders.give(arguments, "drain", arguments.target)
