"""`hetero-hvd hardware`: what this machine is made of."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SUMMARY = "say what this machine is made of, and what of it training may use"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--path",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where the data set lies (default: the current folder)",
    )
    command.add_argument(
        "--towards",
        metavar="ADDRESS",
        help="the driver's machine, whose direction decides the network interface",
    )


def act(arguments: argparse.Namespace) -> int:
    """Print the inventory."""
    from hetero_hvd.probes.machine.inventory import take_inventory  # noqa: PLC0415 - asks the GPU driver

    inventory = take_inventory(arguments.path, towards=arguments.towards)
    print(json.dumps(inventory.as_dict(), indent=2) if arguments.json else inventory.text())
    return 0
