"""Paths of this machine, as people write them."""

from __future__ import annotations

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
