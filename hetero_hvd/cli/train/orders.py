"""What the commands share that tell a running job something."""

from __future__ import annotations

import argparse
from typing import Any

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.watch.run_argument import HELP, run_of
from hetero_hvd.errors import UserError


def add_run(command: argparse.ArgumentParser) -> None:
    """Which job."""
    command.add_argument(
        "run",
        nargs="?",
        type=run_of,
        metavar="RUN",
        help=f"the running job: {HELP} (default: the newest in runs/ that runs)",
    )
    command.add_argument("--output", type=run_of, metavar="RUN", help="the same")


def give(arguments: argparse.Namespace, order: str, wish: Any) -> int:  # noqa: ANN401 - plain data
    """Give the job an order, and print its answer; see `driver.network.control_socket.order`."""
    from hetero_hvd.driver.network import control_socket as control  # noqa: PLC0415 - only these commands need it

    if arguments.run and arguments.output:
        raise UserError(f"--output {arguments.output} and {arguments.run}: name one running job")
    folder = arguments.run or arguments.output or control.newest_run()
    show(control.order(folder, order, wish))
    return 0
