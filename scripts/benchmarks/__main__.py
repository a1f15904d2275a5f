"""`scripts/bench`: measure, and write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import again, report
from benchmarks.parts import PARTS
from benchmarks.tables import FULL, QUICK, Effort, Say, Table
from hetero_hvd.errors import HeteroHvdError, UserError

QUICK_PARTS = ("simulation", "mixed", "equal")
QUIET_LOAD, MAX_WAIT_SECONDS = 0.7, 300.0
BUSY_LOAD = 2.0
"""Above it whatever is measured by time is told to be worth little."""


def main() -> int:
    """Run the parts that were asked for.

    Returns:
        0; 1 if a part could not be measured, or differs from what was measured before.
    """
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # its jobs end with it
    if arguments.wait:
        _wait_until_quiet()
    if (load := os.getloadavg()[0]) > BUSY_LOAD:
        print(  # noqa: T201
            f"scripts/bench: other programs keep this machine busy (load {load:.1f}): figures of "
            "time are worth little, and are kept with that load; --wait waits for a quiet machine",
            file=sys.stderr,
        )
    code, began = 0, time.monotonic()
    facts = report.header(["scripts/bench", *sys.argv[1:]])
    for name in arguments.parts:

        def say(line: str, part: str = name) -> None:
            print(f"[{time.monotonic() - began:5.0f} s] {part}: {line}", flush=True)  # noqa: T201

        try:
            tables, runs = _measure(name, arguments, facts, say)
        except HeteroHvdError as error:
            say(f"could not be measured: {error}")
            code = 1
            continue
        for table in tables:
            for number in table.numbers:
                say(f"{number.quantity}: {number.found} ({number.goal}) {number.is_reached}")
        if arguments.again:
            code |= not _agrees(runs, say)
    return code


def _measure(
    part: str, arguments: argparse.Namespace, facts: Mapping[str, str], say: Say
) -> tuple[list[Table], list[again.Measured]]:
    """Measure a part; each of its tables is written as soon as it is there."""
    effort: Effort = arguments.effort
    settings = {"repeats": effort.repeats, "num_steps": effort.num_steps}
    tables: list[Table] = []
    if arguments.resume:
        tables = report.tables_kept(arguments.docs, facts, part, settings)
        say(f"{len(tables)} tables are there already")
        effort = replace(effort, done=frozenset(table.title for table in tables))
    runs: list[again.Measured] = []
    for table in PARTS[part](effort, say):
        tables = [*(each for each in tables if each.title != table.title), table]
        earlier = arguments.earlier.get(part, [])
        runs = report.write(arguments.docs, facts, part, tables, earlier=earlier, settings=settings)
    return tables, runs


def _arguments() -> argparse.Namespace:
    """What is asked for; also `effort`, and, with `--again`, `earlier`: the kept runs."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    add("--quick", action="store_true", help="under 5 minutes")
    add("--repeats", type=int, metavar="N", help="of each run (default: 5; with --quick 1)")
    add("--again", action="store_true", help="measure a further time, and compare")
    add("--resume", action="store_true", help="without the tables that this commit has already")
    add("--docs", type=Path, default=Path("docs"), help="where to write")
    add("--wait", action="store_true", help="first wait for a quiet machine")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)!r}: must be of {', '.join(PARTS)}")
    arguments.effort = QUICK if arguments.quick else FULL
    if arguments.repeats is not None:
        if arguments.repeats < 1:
            parser.error(f"--repeats: {arguments.repeats} must be 1 or more")
        arguments.effort = replace(arguments.effort, repeats=arguments.repeats)
    arguments.parts = arguments.parts or (QUICK_PARTS if arguments.quick else tuple(PARTS))
    if arguments.again and arguments.resume:
        parser.error("--again and --resume: must be one of them")
    arguments.earlier = {}
    if arguments.again:
        try:
            arguments.earlier = {
                part: again.kept_runs(arguments.docs, part) for part in arguments.parts
            }
        except UserError as error:
            parser.error(str(error))
    return arguments


def _agrees(runs: Sequence[again.Measured], say: Say) -> bool:
    """Tell how the newest run compares; whether every quantity that has a spread agrees."""
    rows = again.rows_of(runs)
    for row in rows:
        told = {None: "has no spread", True: "agrees", False: "DIFFERS"}[row.agrees]
        say(f"{row.title}, {', '.join(filter(None, row.cells))}: {told}")
    return any(row.agrees for row in rows) and all(row.agrees is not False for row in rows)


def _wait_until_quiet() -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while os.getloadavg()[0] > QUIET_LOAD and time.monotonic() < deadline:
        time.sleep(5)


if __name__ == "__main__":
    sys.exit(main())
