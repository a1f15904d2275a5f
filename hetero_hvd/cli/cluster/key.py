"""`hetero-hvd key`: make a cluster key, or a token for a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from hetero_hvd.cli.lines import show
from hetero_hvd.config.paths import some_path

USES = (
    "as a cluster key it is copied, over a safe way, to each node that runs an agent, and who has "
    "it runs commands there; nodes that ssh or srun reaches need none, nor does the token of a page"
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "path", nargs="?", type=some_path, default=Path("cluster.key"), help="default: cluster.key"
    )
    command.add_argument(
        "--replace",
        action="store_true",
        help="write a new one in its place: a page takes a new token at once, a cluster key has to "
        "be copied to all nodes before they are started again",
    )


def act(arguments: argparse.Namespace) -> int:
    """Make it."""
    from hetero_hvd.security.cluster_key import make_key  # noqa: PLC0415 - only this command needs it

    make_key(arguments.path, replaces=arguments.replace)
    before = "the one before is refused; " if arguments.replace else ""
    show(f"{arguments.path}: {before}{USES}")
    return 0
