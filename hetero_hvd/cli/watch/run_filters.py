"""Which of many recorded runs a command is about."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_hvd.config.value_types import TAG_NAME
from hetero_hvd.errors import JobError

if TYPE_CHECKING:
    from hetero_hvd.run.reports.catalogue import RecordedRun

STATES = ("running", "finished", "failed", "stopped", "no-end", "unreadable")


def add_filters(command: argparse.ArgumentParser) -> None:
    """Names, tags, states, conditions and an order."""
    command.add_argument(
        "--name",
        default="",
        metavar="NAME",
        help="only those of that name or folder; where none is called so, of that pattern: 'r50*'",
    )
    command.add_argument(
        "--tag",
        action="append",
        default=[],
        type=_tag,
        metavar="NAME[=VALUE]",
        help="only those with that tag; may be given several times",
    )
    command.add_argument("--state", choices=STATES, default="", help="only those that stand so")
    command.add_argument(
        "--where",
        default="",
        metavar="CONDITION",
        help="only those that fulfil it, such as 'accuracy > 0.9 and tag.lr < 0.2'",
    )
    command.add_argument(
        "--sort", default="", metavar="TERMS", help="their order, such as 'accuracy desc'"
    )


def has_filters(arguments: argparse.Namespace) -> bool:
    """Whether any was given; an order alone chooses no run."""
    return any((arguments.name, arguments.tag, arguments.state, arguments.where))


def none_of(folder: Path, arguments: argparse.Namespace) -> str:
    """What is said where `chosen` gives none."""
    return f"no runs in {folder}{' pass these filters' if has_filters(arguments) else ''}"


def chosen(folder: Path, arguments: argparse.Namespace) -> list[RecordedRun]:
    """The runs in a folder that pass all filters, in the order that is asked for.

    Raises:
        JobError: There is no such folder, or it cannot be looked into.
        UserError: A condition or the order cannot be understood.
    """
    from hetero_hvd.run.reports.catalogue import choose, matching, recorded_runs  # noqa: PLC0415

    try:
        next(folder.iterdir(), None)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else "is no path"
        raise JobError(f"{folder}: {reason}; name a folder with runs in it") from error
    runs = recorded_runs(folder)
    runs = matching(runs, name=arguments.name, tags=arguments.tag, state=arguments.state)
    if arguments.where or arguments.sort:
        runs = choose(runs, where=arguments.where, sort=arguments.sort)
    return runs


def _tag(text: str) -> tuple[str, str | None]:
    """Name and value of a tag; None: any value.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    name, mark, value = text.partition("=")
    if not TAG_NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be NAME or NAME=VALUE, the name of letters, digits and '_'"
        )
    return name, value if mark else None
