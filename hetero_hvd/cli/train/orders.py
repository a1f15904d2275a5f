"""What the commands share that tell a running job something."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hetero_hvd.cli.lines import show


def add_output(command: argparse.ArgumentParser) -> None:
    """Which job."""
    command.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="folder of the running job (default: the newest in runs/)",
    )


def give(arguments: argparse.Namespace, order: str, wish: Any) -> int:  # noqa: ANN401 - plain data
    """Give the job an order, and print its answer; see `driver.network.control_socket.order`."""
    from hetero_hvd.driver.network import control_socket as control  # noqa: PLC0415 - only these commands need it

    show(control.order(arguments.output or control.newest_run(), order, wish))
    return 0
