"""`hetero-hvd deploy compose DIR`: the demo on one machine, for `docker compose up`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hetero_hvd.deploy import checks
from hetero_hvd.deploy.compose import DRIVER, PAGE_PORT, ComposeDemo, compose_file, nodes_file
from hetero_hvd.deploy.folder import make_readable, write_files
from hetero_hvd.deploy.kubernetes.options import USER_ID
from hetero_hvd.deploy.script import read_script
from hetero_hvd.errors import UserError
from hetero_hvd.monitoring.files import write_stack
from hetero_hvd.security.cluster_key import make_key

SUMMARY = (
    "write a Compose file for one machine: a driver, three agents of unequal speed, monitoring"
)
DEMO = ("digits.py",)
"""In the image."""

KEYS = ("cluster.key", "token")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The flags."""
    command.add_argument(
        "--image", required=True, help="with hetero_hvd; docs/guide/containers.md says how to make"
    )
    command.add_argument(
        "--script", type=Path, metavar="FILE", help="a script that is not in the image"
    )


def write(arguments: argparse.Namespace) -> tuple[list[Path], str]:
    """Check everything, then write; gives the files, and what to do with them.

    Raises:
        UserError: Something is wrong; nothing is written then.
    """
    folder: Path = arguments.folder
    script = None if arguments.script is None else read_script(arguments.script)
    demo = ComposeDemo(
        image=checks.image("--image", arguments.image),
        command=checks.command(arguments.command) or DEMO,
        user=_user(),
        script=None if script is None else script[0],
    )
    texts = {} if script is None else dict([script])
    contents = {**texts, "compose.yaml": compose_file(demo), "nodes.yaml": nodes_file()}
    written = write_files(folder, contents, force=arguments.force)
    try:
        keys, stack = _made(folder)
        make_readable(folder, [*written, *stack])
        return [*written, *keys, *stack], f"  docker compose -f {folder / 'compose.yaml'} up"
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def _user() -> tuple[int, int]:
    """Who writes the files runs the containers; instead of root, the user of the image."""
    return (os.getuid(), os.getgid()) if os.getuid() else (USER_ID, USER_ID)


def _made(folder: Path) -> tuple[list[Path], list[Path]]:
    """Keys, which are never replaced, and what watches; beside these the folder for runs."""
    (folder / "runs").mkdir(mode=0o700, exist_ok=True)
    (folder / "keys").mkdir(mode=0o700, exist_ok=True)
    keys = [folder / "keys" / name for name in KEYS]
    for key in keys:
        if not key.exists():
            make_key(key)
    for path in (folder / "runs", folder / "keys", *keys):
        os.chown(path, *_user())
    driver = f"http://{DRIVER}:{PAGE_PORT}"
    stack = write_stack(folder / "monitoring", driver=driver, token_file="/keys/token")  # noqa: S106 - a path
    return keys, stack
