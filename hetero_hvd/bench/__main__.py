"""`scripts/bench`: measure, and write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hetero_hvd.bench import report
from hetero_hvd.bench.parts import PARTS
from hetero_hvd.bench.tables import FULL, QUICK, Table
from hetero_hvd.errors import HeteroHvdError

QUICK_PARTS = ("simulation", "mixed", "equal")
QUIET_LOAD, MAX_WAIT_SECONDS = 0.7, 300.0


def main() -> int:
    """Run the parts that were asked for.

    Returns:
        0; 1 if a part could not be measured.
    """
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="under 5 minutes")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where to write")
    parser.add_argument("--wait", action="store_true", help="first wait for a quiet machine")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)!r}: must be of {', '.join(PARTS)}")
    if arguments.wait:
        _wait_until_quiet()
    code, began = 0, time.monotonic()
    facts = report.header(["scripts/bench", *sys.argv[1:]])
    for name in arguments.parts or (QUICK_PARTS if arguments.quick else PARTS):

        def say(line: str, part: str = name) -> None:
            print(f"[{time.monotonic() - began:5.0f} s] {part}: {line}", flush=True)  # noqa: T201

        try:
            tables: list[Table] = list(PARTS[name](QUICK if arguments.quick else FULL, say))
        except HeteroHvdError as error:
            say(f"could not be measured: {error}")
            code = 1
            continue
        report.write(arguments.docs, facts, {name: tables})
        for table in tables:
            for number in table.numbers:
                say(f"{number.quantity}: {number.found} ({number.goal}) {number.is_reached}")
    return code


def _wait_until_quiet() -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while os.getloadavg()[0] > QUIET_LOAD and time.monotonic() < deadline:
        time.sleep(5)


if __name__ == "__main__":
    sys.exit(main())
