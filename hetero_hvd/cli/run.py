"""`hetero-hvd run`: train on all nodes."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from hetero_hvd.cli.settings import add_nodes_file, add_settings, load
from hetero_hvd.config import ClusterConfig
from hetero_hvd.errors import JobError, UserError

SUMMARY = "train on all nodes"
USAGE = "%(prog)s [options] -- train.py [arguments]"
HELP = """\
Start one worker on each slot of nodes.yaml, train, and balance the shares.

After `--` comes the training script with its arguments, or any other command. A first word that
ends in .py is run by each node's own interpreter (nodes[].python), anything else as it stands.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_nodes_file(command)
    command.add_argument(
        "--resume",
        type=Path,
        metavar="PATH",
        help="go on from the newest checkpoint in this output folder of an earlier run",
    )
    add_settings(command)


def act(arguments: argparse.Namespace) -> int:
    """Train; gives the training's exit code."""
    command = arguments.command
    if not command:
        raise UserError("no command: hetero-hvd run [options] -- train.py [arguments]")
    nodes_file = load(arguments)
    check_script(command, nodes_file.current)
    if find_spec("horovod") is None:
        raise JobError("Horovod is not installed here: run scripts/setup, see hetero-hvd doctor")
    from hetero_hvd.driver.job import run_job  # noqa: PLC0415 - imports Horovod

    return run_job(nodes_file, command, resume=arguments.resume)


def check_script(command: tuple[str, ...], cluster: ClusterConfig) -> None:
    """Find a mistyped script before any worker is started.

    Raises:
        JobError: A node on this machine would not find it. Other machines may have other files.
    """
    is_python = Path(command[0]).name.startswith("python")
    script = command[1] if is_python and len(command) > 1 else command[0]
    if not script.endswith(".py"):
        return
    for node in cluster.nodes:
        folder = Path(node.directory or "").expanduser()
        if node.launcher == "local" and not (folder / script).is_file():
            raise JobError(
                f"{script}: no such file in {folder.absolute()}, where {node.name} runs it"
            )
