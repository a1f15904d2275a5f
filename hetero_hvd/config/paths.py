"""Paths of this machine, as people write them."""

from __future__ import annotations

import argparse
from pathlib import Path

from hetero_hvd.errors import UserError


def own_path(text: str | Path, setting: str) -> Path:
    """A path with `~` and `~user` replaced.

    Args:
        text: As it was written.
        setting: Where, for the message.

    Raises:
        UserError: There is no such user, or it has no home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{setting}: {text}: this machine knows no home of that user; give a whole path"
        ) from error


def path_text(text: str) -> str:
    """An argument of a command that is a path.

    Raises:
        argparse.ArgumentTypeError: It is empty, as a shell's variable that is not set; `Path` would
            take it for the working directory.
    """
    if not text:
        raise argparse.ArgumentTypeError("found '', must be a path")
    return text


def some_path(text: str) -> Path:
    """The same, as a path.

    Raises:
        argparse.ArgumentTypeError: It is empty.
    """
    return Path(path_text(text))
