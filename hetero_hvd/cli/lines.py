"""How the commands print text that is not theirs."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from hetero_hvd.core.printable import printable, printable_json


def show(line: str, file: TextIO | None = None) -> None:
    """Print one line; names and messages in it cannot make the terminal do anything."""
    print(printable(line), file=file, flush=True)


def add_json(command: argparse.ArgumentParser, more: str = "") -> None:
    """The option of a command that lists something.

    Args:
        command: Gets it.
        more: What else is to be said of it.
    """
    command.add_argument("--json", action="store_true", help=f"print JSON{more}")


def show_json(content: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Print a value as JSON; what is not a number or not known is null."""
    import msgspec  # noqa: PLC0415 - only some commands need it

    print(printable_json(msgspec.json.format(msgspec.json.encode(content)).decode()))
