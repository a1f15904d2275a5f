"""How the commands print text that is not theirs."""

from __future__ import annotations

from typing import TextIO

from hetero_hvd.core.printable import printable


def show(line: str, file: TextIO | None = None) -> None:
    """Print one line; names and messages in it cannot make the terminal do anything."""
    print(printable(line), file=file, flush=True)
