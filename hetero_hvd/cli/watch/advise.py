"""`hetero-hvd advise`: what to change, with evidence and what it brings."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import get_args

from hetero_hvd.cli.lines import show
from hetero_hvd.cli.watch.run_argument import HELP, LATEST, run_of
from hetero_hvd.core.advice.advice import WORTH_RATIO, Goal

SUMMARY = "tell what to change about a run, what that would bring, and how sure it is"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "run",
        type=run_of,
        nargs="*",
        metavar="RUN",
        help=f"{HELP} (default: {LATEST}); of several the last one is judged, and who was slow in "
        "many of them",
    )
    command.add_argument("--for", dest="goal", choices=get_args(Goal), help="only what brings this")
    command.add_argument(
        "--worth",
        type=_ratio,
        default=WORTH_RATIO,
        metavar="PART",
        help=f"the least gain that is told, such as 10%% (default: {100 * WORTH_RATIO:g}%%)",
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def act(arguments: argparse.Namespace) -> int:
    """Print what is advised."""
    import msgspec  # noqa: PLC0415 - only this command needs these

    from hetero_hvd.run.reports.advice import advised, in_words  # noqa: PLC0415

    runs: list[Path] = arguments.run or [run_of(LATEST)]
    said = advised(runs, goal=arguments.goal, worth_ratio=arguments.worth)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(said)).decode())
        return 0
    for line in in_words(said):
        show(line)
    return 0


def _ratio(text: str) -> float:
    number, is_percent = text.removesuffix("%"), text.endswith("%")
    try:
        value = float(number) / (100 if is_percent else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a part of at least 0, such as 10%")
    return value
