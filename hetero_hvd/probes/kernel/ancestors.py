"""What this process was started by, as the kernel knows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Ancestor(NamedTuple):
    """A process: this one, or one above it.

    Attributes:
        words: Its command line.
        environment: The variables that its program was started with.
    """

    words: list[str]
    environment: dict[str, str]


def ancestors() -> Iterator[Ancestor]:
    """This process, its parent, and so on."""
    pid = "self"
    with suppress(OSError, IndexError):
        while pid not in ("0", "1"):
            stat = (PROC / pid / "stat").read_text(errors="replace")
            yield Ancestor(_texts(pid, "cmdline"), _environment(pid))
            pid = stat.rpartition(")")[2].split()[1]


def _texts(pid: str, name: str) -> list[str]:
    content = (PROC / pid / name).read_bytes().decode(errors="replace")
    return content.removesuffix("\0").split("\0")


def _environment(pid: str) -> dict[str, str]:
    """Empty if the process is another user's."""
    with suppress(OSError):
        pairs = (text.partition("=") for text in _texts(pid, "environ"))
        return {name: value for name, _, value in pairs}
    return {}
