"""`hetero-hvd bench-comm`: what the network between the workers can do."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from hetero_hvd.cli.nodes_to_ask import check_range
from hetero_hvd.cli.settings import add_nodes_file, add_settings, load
from hetero_hvd.core.bandwidth import OPERATIONS
from hetero_hvd.errors import UserError
from hetero_hvd.probes.training_packages import require_training

HELP = """\
Start one worker on each slot of nodes.yaml and time Horovod's operations over growing sizes, with
what it is built for (Gloo, and NCCL where all workers have a GPU). Every result is checked. At the
end: a table, the bandwidth of each link, comm.json and a plot in the output folder.
"""
SMALLEST_BYTES, LARGEST_BYTES = 1024, 2**30
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 3600.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_nodes_file(command)
    command.add_argument(
        "--ops",
        default=",".join(OPERATIONS),
        help="some of these, with commas (default: %(default)s)",
    )
    command.add_argument(
        "--max-bytes",
        type=int,
        default=64 * 2**20,
        metavar="BYTES",
        help="of the largest tensor (default: %(default)s)",
    )
    command.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="for all measurements; the largest sizes fall away (default: %(default)s)",
    )
    add_settings(command)


def act(arguments: argparse.Namespace) -> int:
    """Measure and show; 1 if a result was wrong."""
    plan = _plan(arguments)
    arguments.output = arguments.output or _unused("bench-comm")
    nodes_file = load(arguments)
    require_training("hetero-hvd bench-comm")
    from hetero_hvd.measure import comm  # noqa: PLC0415 - only this command needs it

    folder = Path(arguments.output)
    return comm.show(comm.measure(nodes_file, plan, folder), folder)


def _unused(name: str) -> str:
    """The first folder of this name and a number that is not there: a run needs its own."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(name for name in names if not Path(name).exists())


def _plan(arguments: argparse.Namespace) -> dict[str, object]:
    """What the workers are told.

    Raises:
        UserError: A value is out of its range.
    """
    ops = [name.strip() for name in arguments.ops.split(",")]
    if unknown := [name for name in ops if name not in OPERATIONS]:
        raise UserError(f"--ops: found {unknown[0]!r}, must be some of {', '.join(OPERATIONS)}")
    if not SMALLEST_BYTES <= arguments.max_bytes <= LARGEST_BYTES:
        found = f"--max-bytes: found {arguments.max_bytes}"
        raise UserError(f"{found}, must be from {SMALLEST_BYTES} to {LARGEST_BYTES}")
    check_range("--seconds", arguments.seconds, SHORTEST_SECONDS, LONGEST_SECONDS)
    return {"ops": ops, "max_bytes": arguments.max_bytes, "seconds": arguments.seconds}
