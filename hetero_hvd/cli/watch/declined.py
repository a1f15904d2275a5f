"""Which advice this user does not want to be told again: a line for each in a file of his."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from hetero_hvd.config.paths import own_path
from hetero_hvd.errors import UserError, job_error
from hetero_hvd.run.records.run_files import change_file, regular

_ID = re.compile(r"[a-z]+:\S.{0,20000}")
"""Of some hundred nodes, of which a Prometheus may have others' names than we do."""
MAX_IDS = 10_000


def ids() -> frozenset[str]:
    """All that was declined; what is no ID in the file is passed over.

    Raises:
        JobError: It cannot be read.
    """
    path = _file()
    try:
        with open(path, "rb", opener=regular) as file:
            return _ids(file.read())
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise job_error(f"{path}: cannot be read: {error.strerror}", error) from error


def change(declined: Sequence[str], recalled: Sequence[str]) -> Iterator[str]:
    """Decline some, tell others again; a line of what was done for each.

    Raises:
        UserError: One is no ID, or there would be too many.
        JobError: The file cannot be written.
    """
    for each in (*declined, *recalled):
        if not _is_id(each):
            raise UserError(f"{each!r}: is no ID of an advice; `id` stands under each")
    known: set[str] = set()
    path = _file()

    def changed(content: bytes) -> bytes:
        known.update(_ids(content))
        wanted = sorted((known | set(declined)) - set(recalled))
        if len(wanted) > MAX_IDS:
            raise UserError(
                f"{path}: would hold {len(wanted)} IDs, and may hold {MAX_IDS}: take some back by "
                "--recall, or delete the file"
            )
        return "".join(f"{each}\n" for each in wanted).encode()

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        change_file(path, changed)
    except OSError as error:
        raise job_error(f"{path}: cannot be changed: {error.strerror}", error) from error
    for each in declined:
        again = f"hetero-hvd advise --recall {shlex.quote(each)}"
        yield f"{each}: is not told any more; {again} tells it again"
    for each in recalled:
        yield f"{each}: is told again" if each in known else f"{each}: was not declined"


def _ids(content: bytes) -> frozenset[str]:
    return frozenset(filter(_is_id, content.decode(errors="replace").splitlines()))


def _is_id(text: str) -> bool:
    """Whether it may be one: names of nodes that a Prometheus tells may hold spaces, too."""
    return text.isprintable() and _ID.fullmatch(text) is not None


def _file() -> Path:
    """By the XDG base directory specification."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    root = given if given.is_absolute() else own_path("~/.local/state", "declined advice")
    return root / "hetero_hvd" / "declined-advice"
