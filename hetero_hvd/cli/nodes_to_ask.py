"""What the commands share that ask nodes: for how long, and which of them can be asked."""

from __future__ import annotations

import argparse

from hetero_hvd.config import ClusterConfig
from hetero_hvd.errors import UserError

SHORTEST_SECONDS, LONGEST_SECONDS, DEFAULT_SECONDS = 5.0, 3600.0, 60.0


def add_timeout(command: argparse.ArgumentParser) -> None:
    """How long a node may take."""
    command.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        help="for each answer of a node (default: %(default)g)",
    )


def check_timeout(arguments: argparse.Namespace) -> None:
    """Refuse what is no time to wait.

    Raises:
        UserError: It is not.
    """
    check_range("--timeout", arguments.timeout, SHORTEST_SECONDS, LONGEST_SECONDS)


def check_range(flag: str, found: float, least: float, most: float) -> None:
    """Refuse a number out of its range, and what is no number, as NaN compares with none.

    Raises:
        UserError: It is one.
    """
    if not least <= found <= most:
        raise UserError(f"{flag}: found {found:g}, must be from {least:g} to {most:g}")


def none_to_ask(cluster: ClusterConfig, command: str) -> UserError:
    """The error where all nodes have agents, or are steps of a Slurm job."""
    return UserError(
        f"{cluster.where} has no node that is this machine or that ssh reaches, and 'hetero-hvd "
        f"{command} -f' asks those alone; of agents see 'hetero-hvd nodes --discover', or call "
        f"'hetero-hvd {command}' on the node itself"
    )
