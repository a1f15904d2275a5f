"""`hetero-hvd run --slurm`: the nodes of the Slurm job that the command is called in."""

from __future__ import annotations

import argparse
import os

from hetero_hvd.cli.settings import flags_of
from hetero_hvd.config import NodesFile
from hetero_hvd.slurm.allocation import allocation, as_yaml
from hetero_hvd.slurm.node_loss import check_no_kill


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    group = command.add_argument_group("inside a Slurm job, see docs/guide/slurm.md")
    group.add_argument(
        "--slurm",
        action="store_true",
        help="train on the nodes of the Slurm job in which this is called; a file that -f names "
        "may hold settings, and more about these nodes",
    )


class SlurmJob:
    """The Slurm job that this command is called in.

    Args:
        arguments: Of the command line.

    Attributes:
        nodes_file: Its nodes, with the settings of the job.

    Raises:
        UserError: It is in none, or that is not as it must be.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._granted = allocation(os.environ)
        check_no_kill(self._granted, os.environ)
        paths = tuple(arguments.nodes_files or ())
        self.nodes_file = NodesFile(
            paths, os.environ, flags_of(arguments), granted=as_yaml(self._granted)
        )
