"""`hetero-hvd compare`: how runs differ."""

from __future__ import annotations

import argparse
from pathlib import Path

from hetero_hvd.cli.lines import add_json, refuse_together, show, show_json
from hetero_hvd.cli.watch.run_argument import HELP, run_of
from hetero_hvd.cli.watch.run_filters import add_filters, chosen, has_filters
from hetero_hvd.config.paths import some_path
from hetero_hvd.errors import JobError, UserError

RUNS = Path("runs")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "runs",
        nargs="*",
        type=run_of,
        metavar="RUN",
        help=f"{HELP}; beside them all in runs/ that --name, --tag, --state or --where choose",
    )
    add_filters(command)
    command.add_argument(
        "--html",
        type=some_path,
        metavar="PATH",
        help="write one page: all of them in each plot, and what differs",
    )
    command.add_argument(
        "--plot",
        type=some_path,
        metavar="PATH",
        help="write plots with all of them in each: .png, .pdf or .svg",
    )
    add_json(command)


def act(arguments: argparse.Namespace) -> int:
    """Compare; 1 if the fingerprints of reproducible runs differ."""
    from hetero_hvd.run.reports.comparing.comparison import as_plain, compared, in_words  # noqa: PLC0415
    from hetero_hvd.run.reports.comparing.fingerprints import compare  # noqa: PLC0415 - only this command

    refuse_together(arguments, "json", "html")
    refuse_together(arguments, "json", "plot")
    runs = _runs(arguments)
    if arguments.html or arguments.plot:
        _draw(runs, html=arguments.html, plot=arguments.plot)
        return 0
    are_recorded, have_bits = _comparable(runs)
    content = as_plain(runs) if are_recorded and arguments.json else {}
    if are_recorded and not arguments.json:
        for line in in_words(compared(runs)):
            show(line)
    found = compare(*runs) if have_bits else None
    if arguments.json:
        bits = found and {"are_equal": found.are_equal, "lines": found.lines}
        show_json(content | {"fingerprints": bits})
    else:
        for line in found.lines if found else ():
            show(line)
    return 0 if found is None or found.are_equal else 1


def _runs(arguments: argparse.Namespace) -> list[Path]:
    """Those that were named, then those that were chosen, each once.

    Raises:
        JobError: One is not there.
        UserError: They are fewer than two, or none is chosen that an order could be of.
    """
    if arguments.sort and not has_filters(arguments):
        raise UserError(
            "--sort: is the order of runs that --name, --tag, --state or --where choose; give one "
            "of these, or name the runs in their order"
        )
    runs = list(arguments.runs)
    if has_filters(arguments):
        named = {run.resolve() for run in runs}
        others = [run.folder for run in chosen(RUNS, arguments) if run.facts is not None]
        runs += [folder for folder in others if folder.resolve() not in named]
    absent = next((run for run in runs if not run.exists()), None)
    if absent is not None:
        raise JobError(f"{absent}: No such file or directory; name the {HELP}")
    if len(runs) == 1:
        raise UserError(f"{runs[0]}: name at least one other run to compare it with")
    if not runs:
        what = "no run in runs/ is chosen by these" if has_filters(arguments) else "RUN is missing"
        raise UserError(f"{what}; name two runs or more, or choose them, such as --tag lr")
    return runs


def _comparable(runs: list[Path]) -> tuple[bool, bool]:
    """Whether all of them are recorded, and whether they are two with fingerprints.

    Raises:
        JobError: Neither is so; names each run that lacks something.
    """
    from hetero_hvd.run.records.run_files import LISTED  # noqa: PLC0415 - only this command
    from hetero_hvd.run.records.writer import FILE as CATALOGUE  # noqa: PLC0415
    from hetero_hvd.run.reports.comparing.fingerprints import FILE, MADE_BY  # noqa: PLC0415

    unrecorded = [run for run in runs if not (run / CATALOGUE).is_file()]
    without_bits = [run for run in runs if run.is_dir() and not (run / FILE).is_file()]
    have_bits = len(runs) == 2 and not without_bits  # noqa: PLR2004 - bits are compared by pairs
    if have_bits or not unrecorded:
        return not unrecorded, have_bits
    if len(runs) > 2 or set(unrecorded) <= set(without_bits):  # noqa: PLR2004 - likewise
        why = f"no run is recorded there ({CATALOGUE} is missing); {LISTED}"
        raise JobError(*dict.fromkeys(f"{run}: {why}" for run in unrecorded))
    other = next(run for run in unrecorded if run not in without_bits)
    raise JobError(
        f"{without_bits[0]}: has no {FILE}, and {other} has nothing else to compare; {MADE_BY}"
    )


def _draw(runs: list[Path], *, html: Path | None, plot: Path | None) -> None:
    from hetero_hvd.run.reports.comparing.comparison import compared  # noqa: PLC0415

    found = compared(runs)
    if html is not None:
        from hetero_hvd.run.reports.html import write_page  # noqa: PLC0415

        write_page(found, html)
        show(f"page: {html}")
    if plot is not None:
        from hetero_hvd.run.reports.plots import draw  # noqa: PLC0415 - matplotlib is an extra

        draw(found.plots, " · ".join(found.labels), plot)
        show(f"plot: {plot}")
