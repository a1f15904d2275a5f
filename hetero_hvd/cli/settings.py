"""The nodes file and the settings of the job, as flags."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hetero_hvd.config import JOB_SETTINGS, NodesFile


def add_nodes_file(command: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """The flag for nodes.yaml.

    Args:
        command: Gets it.
        is_optional: Whether the command does something else without it.
    """
    default = None if is_optional else Path("nodes.yaml")
    command.add_argument(
        "-f",
        "--nodes-file",
        type=Path,
        default=default,
        metavar="FILE",
        help=f"the nodes and settings of the job (default: {default or 'this machine alone'})",
    )


def add_settings(command: argparse.ArgumentParser) -> None:
    """A flag for each setting of the job, as text: checked together with the file."""
    group = command.add_argument_group("settings of the job, see docs/reference/nodes-yaml.md")
    for setting in JOB_SETTINGS:
        text = f"{setting.doc} (default: {setting.default_text or setting.default})"
        text = text.replace("%", "%%")
        if isinstance(setting.default, bool):
            group.add_argument(
                setting.flag, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            metavar = setting.name.rpartition("_")[2].upper()
            group.add_argument(setting.flag, default=None, metavar=metavar, help=text)


def load(arguments: argparse.Namespace) -> NodesFile:
    """Read nodes.yaml, the environment and the flags together."""
    flags = {setting.name: getattr(arguments, setting.name, None) for setting in JOB_SETTINGS}
    return NodesFile(arguments.nodes_file, os.environ, flags)
