"""`hetero-hvd runs`: the recorded runs of a folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hetero_hvd.cli.lines import add_json, show, show_json
from hetero_hvd.cli.table import print_columns
from hetero_hvd.cli.watch.run_filters import add_filters, chosen, none_of
from hetero_hvd.config.paths import some_path
from hetero_hvd.errors import JobError, UserError

if TYPE_CHECKING:
    from hetero_hvd.run.reports.catalogue import RecordedRun


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "folder", nargs="?", type=some_path, default=Path("runs"), help="default: runs"
    )
    add_filters(command)
    command.add_argument(
        "--delete",
        action="store_true",
        help="delete the folders of those that are listed, with their checkpoints; asks first, and "
        "names those that stay, as they run or cannot be read",
    )
    command.add_argument("--yes", action="store_true", help="of --delete: do not ask")
    add_json(command, "; unknown is null")


def act(arguments: argparse.Namespace) -> int:
    """Print a table with a line for each run."""
    from hetero_hvd.run.reports.catalogue import HEADINGS, LEFT_OUT_FIRST, in_table  # noqa: PLC0415

    runs = chosen(arguments.folder, arguments)
    if arguments.yes and not arguments.delete:
        raise UserError("--yes: is for --delete")
    if arguments.json:
        show_json([run.as_dict() for run in runs])
    elif not runs:
        show(none_of(arguments.folder, arguments))
        return 0
    else:
        left_out = print_columns(HEADINGS, in_table(runs), left_out_first=LEFT_OUT_FIRST)
        if left_out:
            show(f"(no room for {', '.join(left_out)}: | less -S shows all)")
    if arguments.delete:
        _delete(runs, is_agreed=arguments.yes, told=sys.stderr if arguments.json else None)
    return 0


def _delete(runs: Sequence[RecordedRun], *, is_agreed: bool, told: TextIO | None = None) -> None:
    """After a yes; a run that goes on, or that cannot be read, stays, and is named.

    Raises:
        UserError: Nobody can be asked.
        JobError: The disk refuses.
    """
    from hetero_hvd.run.records.parts import parts_of  # noqa: PLC0415 - seldom

    stay = {run.folder: why for run in runs if (why := _why_it_stays(run))}
    ended = [run for run in runs if run.folder not in stay]
    folders = list(dict.fromkeys(part for run in ended for part in parts_of(run.folder)))
    for folder, why in stay.items():
        show(f"stays: {folder}: {why}", told)
    if not folders:
        show("nothing to delete", told)
        return
    if not is_agreed:
        if not sys.stdin.isatty():
            raise UserError("--delete: nobody is there to say yes; add --yes")
        count = "1 folder" if len(folders) == 1 else f"{len(folders)} folders"
        if not _says_yes(f"Delete {count} with all checkpoints in them? y/n "):
            return
    _delete_each(folders, told)


def _delete_each(folders: Sequence[Path], told: TextIO | None) -> None:
    """Delete what can be, and then say what could not.

    Raises:
        JobError: Of the first of these.
    """
    from hetero_hvd.run.records.run_folder import delete_run  # noqa: PLC0415 - seldom

    kept: list[JobError] = []
    for folder in folders:
        try:
            delete_run(folder)
        except JobError as error:
            kept.append(error)
        else:
            show(f"deleted: {folder}", told)
    for other in kept[1:]:
        show(str(other), sys.stderr)
    if kept:
        raise kept[0]


def _why_it_stays(run: RecordedRun) -> str:
    """Why nobody is asked about it; empty: it may be deleted."""
    if run.outcome == "running":
        return "a job runs in it"
    if run.outcome == "unreadable":
        return f"whether it is a run is not known: {run.problem}"
    return ""


def _says_yes(question: str) -> bool:
    try:
        return input(question).strip().lower() == "y"
    except EOFError:  # the terminal was closed, or Ctrl-D: nobody has said yes
        return False
