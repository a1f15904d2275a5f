"""A user's script that is put beside the files."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from hetero_hvd.errors import UserError

TAKEN = ("nodes.yaml", "compose.yaml", "keys", "runs", "monitoring")
"""Names that are ours beside it."""

MAX_SCRIPT_BYTES = 900_000
"""A ConfigMap holds 1 MiB."""


def read_script(path: Path) -> tuple[str, str]:
    """Its name and text.

    Raises:
        UserError: It cannot be read, or cannot be taken along.
    """
    try:
        text = _text(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is no text in UTF-8"
        raise UserError(f"--script {path}: cannot be read: {reason}") from error
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", path.name) is None or path.name in TAKEN:
        raise UserError(
            f"--script: found {path.name!r}, must be a name of letters, digits, '-', '_' and '.', "
            f"and none of {', '.join(TAKEN)}"
        )
    if len(text.encode()) > MAX_SCRIPT_BYTES:
        raise UserError(
            f"--script {path}: larger than {MAX_SCRIPT_BYTES} bytes: put it into the image"
        )
    return path.name, text


def _text(path: Path) -> str:
    """As much as may be taken, and a little; nobody waits at a pipe, or at a device without end."""
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
        raise UserError(f"--script {path}: is a pipe or a device, must be a file")
    with path.open(encoding="utf-8") as file:
        return file.read(MAX_SCRIPT_BYTES + 1)
