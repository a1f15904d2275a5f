"""`hetero-hvd trace`: record what workers of a running job do."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "record the next steps of a running job with torch's profiler"
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
    command.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="folder of the running job (default: the newest in runs/)",
    )


def act(arguments: argparse.Namespace) -> int:
    """Ask the job."""
    from hetero_hvd.driver import control  # noqa: PLC0415 - only this command needs it

    wish = {"steps": arguments.steps, "timeline": arguments.timeline}
    if arguments.workers is not None:
        wish["workers"] = [name.strip() for name in arguments.workers.split(",")]
    print(control.order(arguments.output or control.newest_run(), "trace", wish))
    return 0
