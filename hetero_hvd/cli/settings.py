"""The nodes file and the settings of the job, as flags."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from pathlib import Path

from hetero_hvd.config import JOB_SETTINGS, NodesFile
from hetero_hvd.config.paths import some_path

NODES_FILE = Path("nodes.yaml")
DISCOVER = "discover"
"""The flag, and the setting, to look for nodes that announce themselves."""

NO_NODES = b"nodes: []\n"


def add_nodes_file(command: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """The flag for nodes.yaml.

    Args:
        command: Gets it.
        is_optional: Whether the command does something else without it.
    """
    default = "this machine alone" if is_optional else NODES_FILE
    command.add_argument(
        "-f",
        "--nodes-file",
        type=some_path,
        action="append",
        dest="nodes_files",
        metavar="FILE",
        help=f"the nodes and settings of the job (default: {default}); given again, a further file "
        "changes and adds to those before it",
    )


def add_settings(command: argparse.ArgumentParser, left_out: Collection[str] = frozenset()) -> None:
    """A flag for each setting of the job, as text: checked together with the file.

    Args:
        command: Gets them.
        left_out: Names of those that it has in another way.
    """
    group = command.add_argument_group("settings of the job, see docs/reference/nodes-yaml.md")
    for setting in (each for each in JOB_SETTINGS if each.name not in left_out):
        text = f"{setting.doc} (default: {setting.default_text or setting.default})"
        text = text.replace("%", "%%")
        if isinstance(setting.default, bool):
            group.add_argument(
                setting.flag, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            metavar = setting.name.rpartition("_")[2].upper()
            group.add_argument(setting.flag, default=None, metavar=metavar, help=text)


def nodes_files(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """The files that are named, or nodes.yaml."""
    return tuple(arguments.nodes_files or (NODES_FILE,))


def load(arguments: argparse.Namespace) -> NodesFile:
    """Read nodes.yaml, the environment and the flags together.

    Who looks for nodes that announce themselves needs no file, unless one is named.
    """
    is_free = getattr(arguments, DISCOVER, None) and not arguments.nodes_files
    return NodesFile(
        nodes_files(arguments),
        os.environ,
        flags_of(arguments),
        absent=NO_NODES if is_free else None,
    )


def flags_of(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings that were given as flags, and None for all others."""
    return {setting.name: getattr(arguments, setting.name, None) for setting in JOB_SETTINGS}
