"""`hetero-hvd top`: a run as it stands, live or recorded."""

from __future__ import annotations

import argparse
import sys
import time

from hetero_hvd.cli.lines import add_json, show_json
from hetero_hvd.cli.nodes_to_ask import check_range
from hetero_hvd.cli.watch.live_table import table_of
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
        "--token-file", type=path_text, metavar="PATH", help="file of mode 0600 with the token"
    )
    command.add_argument(
        "--ca", type=path_text, metavar="PATH", help="certificate of the CA to trust, PEM"
    )


def act(arguments: argparse.Namespace) -> int:
    """Show the run until it ends or the user leaves."""
    check_range("--interval", arguments.interval, 0.1, 3600.0)
    from hetero_hvd.run.reports.facts import NO_END  # noqa: PLC0415 - only this command needs these
    from hetero_hvd.run.web.source import source_of  # noqa: PLC0415

    run = arguments.run
    if "://" not in run:
        run = str(run_of(run))
    source = source_of(run, token_file=arguments.token_file, ca=arguments.ca)
    if arguments.json:
        show_json(source())
        return 0
    if sys.stdout.isatty() and not arguments.once:
        from hetero_hvd.cli.watch.screen import show  # noqa: PLC0415 - textual takes a while to load

        show(source, interval_seconds=arguments.interval)
        return 0
    while True:
        state = source()
        print("\n".join(table_of(state)), flush=True)
        if arguments.once or state.state in ("ended", NO_END):
            return 0
        time.sleep(arguments.interval)
