"""`hetero-hvd key`: make a cluster key."""

from __future__ import annotations

import argparse
from pathlib import Path

from hetero_hvd.config.paths import some_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "path", nargs="?", type=some_path, default=Path("cluster.key"), help="default: cluster.key"
    )


def act(arguments: argparse.Namespace) -> int:
    """Make it."""
    from hetero_hvd.security.cluster_key import make_key  # noqa: PLC0415 - only this command needs it

    make_key(arguments.path)
    print(f"{arguments.path}: copy it to each node over a safe way; who has it runs commands there")
    return 0
