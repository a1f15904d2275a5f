"""`scripts/bench`: measure, and write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hetero_hvd.bench import again, report
from hetero_hvd.bench.parts import PARTS
from hetero_hvd.bench.tables import FULL, QUICK, Say, Table
from hetero_hvd.errors import HeteroHvdError, UserError

QUICK_PARTS = ("simulation", "mixed", "equal")
QUIET_LOAD, MAX_WAIT_SECONDS = 0.7, 300.0


def main() -> int:
    """Run the parts that were asked for.

    Returns:
        0; 1 if a part could not be measured, or differs from what was measured before.
    """
    arguments = _arguments()
    if arguments.wait:
        _wait_until_quiet()
    code, began = 0, time.monotonic()
    facts = report.header(["scripts/bench", *sys.argv[1:]])
    for name in arguments.parts:

        def say(line: str, part: str = name) -> None:
            print(f"[{time.monotonic() - began:5.0f} s] {part}: {line}", flush=True)  # noqa: T201

        try:
            tables: list[Table] = list(PARTS[name](arguments.effort, say))
        except HeteroHvdError as error:
            say(f"could not be measured: {error}")
            code = 1
            continue
        if arguments.again:
            pairs = again.compare(arguments.kept[name], tables)
            code |= not _agrees(arguments.docs, facts, name, pairs, say)
            continue
        report.write(arguments.docs, facts, {name: tables})
        for table in tables:
            for number in table.numbers:
                say(f"{number.quantity}: {number.found} ({number.goal}) {number.is_reached}")
    return code


def _arguments() -> argparse.Namespace:
    """What is asked for; also `effort`, and `kept`: what is kept of each part, with `--again`."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    add("--quick", action="store_true", help="under 5 minutes")
    add("--repeats", type=int, metavar="N", help="of each run (default: 5; with --quick 1)")
    add("--again", action="store_true", help="measure anew, compare with what is kept")
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
    if arguments.again:
        try:
            arguments.kept = {
                part: again.kept_values(arguments.docs, part) for part in arguments.parts
            }
        except UserError as error:
            parser.error(str(error))
    return arguments


def _agrees(
    docs: Path, facts: Mapping[str, str], part: str, pairs: Sequence[again.Pair], say: Say
) -> bool:
    """Tell and keep how a second measurement compares; whether every row agrees."""
    for pair in pairs:
        say(str(pair))
    report.write_again(docs, facts, part, [str(pair) for pair in pairs])
    return bool(pairs) and all(pair.agrees for pair in pairs)


def _wait_until_quiet() -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while os.getloadavg()[0] > QUIET_LOAD and time.monotonic() < deadline:
        time.sleep(5)


if __name__ == "__main__":
    sys.exit(main())
