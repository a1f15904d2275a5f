"""`hetero-hvd deploy compose DIR`: the demo on one machine, for `docker compose up`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hetero_hvd.config.paths import some_path
from hetero_hvd.deploy import checks
from hetero_hvd.deploy.compose import DRIVER, PAGE_PORT, ComposeDemo, compose_file, nodes_file
from hetero_hvd.deploy.folder import FolderContents, make_readable, write_folder
from hetero_hvd.deploy.kubernetes.options import USER_ID
from hetero_hvd.deploy.script import read_script
from hetero_hvd.errors import UserError
from hetero_hvd.monitoring.files import WatchedPlaces, stack_files
from hetero_hvd.security.cluster_key import read_key
from hetero_hvd.security.token import read_token

SUMMARY = (
    "write a Compose file for one machine: a driver, three agents of unequal speed, monitoring"
)
DEMO = ("digits.py",)
"""In the image."""

PRIVATE = ("runs", "keys")
"""Folders for who runs the containers alone."""

KEYS = {"keys/cluster.key": read_key, "keys/token": lambda path: read_token(str(path), "DIR")}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The flags."""
    command.add_argument(
        "--image", required=True, help="with hetero_hvd; docs/guide/containers.md says how to make"
    )
    command.add_argument(
        "--script", type=some_path, metavar="FILE", help="a script that is not in the image"
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
    driver = f"http://{DRIVER}:{PAGE_PORT}"
    stack = stack_files(WatchedPlaces(driver=driver), token_file="/keys/token")  # noqa: S106 - a path
    texts = {} if script is None else dict([script])
    texts |= {"compose.yaml": compose_file(demo), "nodes.yaml": nodes_file()}
    texts |= {f"monitoring/{name}": text for name, text in stack.items()}
    contents = FolderContents(files=texts, folders=dict.fromkeys(PRIVATE, 0o700), keys=KEYS)
    written = write_folder(folder, contents, force=arguments.force)
    try:
        for name in (*PRIVATE, *KEYS):
            os.chown(folder / name, *_user())
        make_readable(folder, [folder / name for name in texts])
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error
    return written, f"  docker compose -f {folder / 'compose.yaml'} up"


def _user() -> tuple[int, int]:
    """Who writes the files runs the containers; instead of root, the user of the image."""
    return (os.getuid(), os.getgid()) if os.getuid() else (USER_ID, USER_ID)
