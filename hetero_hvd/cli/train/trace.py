"""`hetero-hvd trace`: record what workers of a running job do."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.train import orders

HELP = """\
Record the next steps of a running job, in Chrome's trace format (ui.perfetto.dev reads it). Each
worker writes into the folder traces/ of the run, on its own node; the job's page and `hetero-hvd
report` tell of the files.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("--steps", type=int, default=5, metavar="NUMBER", help="default: 5")
    command.add_argument(
        "--workers", metavar="NODE:SLOT,...", help="who records, with commas (default: all)"
    )
    command.add_argument(
        "--timeline", action="store_true", help="Horovod's timeline as well, from rank 0"
    )
    orders.add_run(command)


def act(arguments: argparse.Namespace) -> int:
    """Ask the job."""
    wish = {"steps": arguments.steps, "timeline": arguments.timeline}
    if arguments.workers is not None:
        wish["workers"] = [name.strip() for name in arguments.workers.split(",")]
    return orders.give(arguments, "trace", wish)
