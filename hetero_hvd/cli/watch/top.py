"""`hetero-hvd top`: a run as it stands, live or recorded."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from shutil import get_terminal_size

from hetero_hvd.cli.lines import add_json, show_json
from hetero_hvd.cli.nodes_to_ask import check_range
from hetero_hvd.cli.watch.live_table import SORTS, table_of
from hetero_hvd.cli.watch.run_argument import HELP, LATEST, run_of
from hetero_hvd.config.paths import path_text


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "run",
        nargs="?",
        default=LATEST,
        metavar="RUN|URL",
        help=f"{HELP}, or address of its page (default: {LATEST!r})",
    )
    command.add_argument("--once", action="store_true", help="print one table and leave")
    add_json(command, ", the state once; unmeasured is null")
    command.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (2)"
    )
    command.add_argument(
        "--sort",
        choices=tuple(SORTS),
        default="name",
        help="of the workers (default: name); on a terminal the key s chooses it",
    )
    command.add_argument(
        "--token-file",
        type=path_text,
        metavar="PATH",
        help="file of mode 0600 with the token; to drain, that of who may operate",
    )
    command.add_argument(
        "--ca", type=path_text, metavar="PATH", help="certificate of the CA to trust, PEM"
    )


def act(arguments: argparse.Namespace) -> int:
    """Show the run until it ends or the user leaves."""
    check_range("--interval", arguments.interval, 0.1, 3600.0)
    from hetero_hvd.run.reports.facts import NO_END  # noqa: PLC0415 - only this command needs these
    from hetero_hvd.run.web.source import drained, source_of  # noqa: PLC0415

    run = arguments.run
    if "://" not in run:
        run = str(run_of(run))
    access = {"token_file": arguments.token_file, "ca": arguments.ca}
    source = source_of(run, **access)
    if arguments.json:
        show_json(source())
        return 0
    num_columns = get_terminal_size().columns if sys.stdout.isatty() else None
    if num_columns is not None and not arguments.once and not _is_dumb():
        from hetero_hvd.cli.watch.screen import show  # noqa: PLC0415 - textual takes a while to load

        def drain(worker: str) -> str:
            if "://" in run:
                return drained(run, worker, **access)
            from hetero_hvd.driver.network.control_socket import order  # noqa: PLC0415 - seldom

            return order(Path(run), "drain", worker)

        show(source, interval_seconds=arguments.interval, drain=drain)
        return 0
    while True:
        state = source()
        print("\n".join(table_of(state, num_columns=num_columns, sort=arguments.sort)), flush=True)
        if arguments.once or state.state in ("ended", NO_END):
            return 0
        time.sleep(arguments.interval)


def _is_dumb() -> bool:
    """Whether the terminal can only write one line after the other."""
    from rich.console import Console  # noqa: PLC0415 - slow to import

    return Console().is_dumb_terminal
