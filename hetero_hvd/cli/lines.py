"""How the commands print text that is not theirs."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from hetero_hvd.core.printable import printable, printable_json
from hetero_hvd.errors import UserError


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


def refuse_together(arguments: argparse.Namespace, *names: str) -> None:
    """Check options of which a command does what one of them says.

    Args:
        arguments: What was given; an option that was not is None or False.
        names: Of the options, without their dashes.

    Raises:
        UserError: More than one was given.
    """
    given = [f"--{name}" for name in names if getattr(arguments, name) not in {None, False}]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)}: cannot be given together; choose one of them")


def show_json(content: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Print a value as JSON; what is not a number or not known is null."""
    import msgspec  # noqa: PLC0415 - only some commands need it

    print(printable_json(msgspec.json.format(msgspec.json.encode(content)).decode()))
