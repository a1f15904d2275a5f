"""`hetero-hvd compare`: how two runs differ."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.lines import add_json, show, show_json
from hetero_hvd.cli.watch.run_argument import HELP, run_of
from hetero_hvd.errors import JobError, UserError


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("runs", nargs="+", type=run_of, metavar="RUN", help=HELP)
    add_json(command)


def act(arguments: argparse.Namespace) -> int:
    """Compare; 1 if the fingerprints of reproducible runs differ."""
    from hetero_hvd.run.records.writer import FILE as CATALOGUE  # noqa: PLC0415
    from hetero_hvd.run.reports.comparison import as_plain, compare_runs  # noqa: PLC0415
    from hetero_hvd.run.reports.fingerprints import FILE, compare  # noqa: PLC0415 - only this command

    runs = arguments.runs
    if len(runs) == 1:
        raise UserError(f"{runs[0]}: name at least one other run to compare it with")
    recorded = [run for run in runs if (run / CATALOGUE).is_file()]
    absent = next((run for run in runs if not run.exists()), None)
    if absent is not None:
        raise JobError(f"{absent}: No such file or directory; name the {HELP}")
    content = as_plain(runs) if recorded == runs and arguments.json else {}
    if recorded == runs and not arguments.json:
        for line in compare_runs(runs):
            show(line)
    has_bits = len(runs) == 2 and all((run / FILE).is_file() for run in runs)  # noqa: PLR2004
    found = compare(*runs[:2]) if has_bits or recorded != runs else None
    if arguments.json:
        bits = found and {"are_equal": found.are_equal, "lines": found.lines}
        show_json(content | {"fingerprints": bits})
    else:
        for line in found.lines if found else ():
            show(line)
    return 0 if found is None or found.are_equal else 1
