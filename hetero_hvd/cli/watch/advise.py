"""`hetero-hvd advise`: what to change, with evidence and what it brings."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from hetero_hvd.cli.lines import add_json, show, show_json
from hetero_hvd.cli.record.times import duration, shown_duration
from hetero_hvd.cli.watch import declined
from hetero_hvd.cli.watch.run_argument import HELP, LATEST, run_of
from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.core.advice.advice import WORTH_RATIO, WORTH_SECONDS, Goal, Worth
from hetero_hvd.errors import UserError

if TYPE_CHECKING:
    from hetero_hvd.core.advice.advice import Advised

HOUR_SECONDS, MAX_HOURS = 3600.0, 10_000.0
LONGER = 24.0
"""So many times as long is looked at by the command that shows more."""

TOKEN = "PROMETHEUS_TOKEN"  # noqa: S105 - its name


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "run",
        type=run_of,
        nargs="*",
        metavar="RUN",
        help=f"{HELP} (default: {LATEST}), or that of a recording; of several runs the last one is "
        "judged, and who was slow in many of them",
    )
    command.add_argument("--for", dest="goal", choices=get_args(Goal), help="only what brings this")
    command.add_argument(
        "--worth",
        type=_worth,
        action="append",
        default=[],
        metavar="PART|TIME",
        help="the least gain that is told, such as 10%%, or the least time in which a device is "
        f"idle, such as 1h (default: {100 * WORTH_RATIO:g}%% and {shown_duration(WORTH_SECONDS)})",
    )
    command.add_argument(
        "--hours",
        type=_hours,
        metavar="H",
        help="only the newest hours of a recording (default: all) or of a Prometheus (default: 1)",
    )
    _add_prometheus(command)
    command.add_argument(
        "--decline", action="append", default=[], metavar="ID", help="do not tell this any more"
    )
    command.add_argument(
        "--recall", action="append", default=[], metavar="ID", help="tell again what was declined"
    )
    command.add_argument(
        "--annotate",
        metavar="OBJECT",
        help="write it into annotations of kubernetes:job/NAME (mpijob, pytorchjob) from a pod of "
        "its namespace, and while the run goes on again when it has changed",
    )
    add_json(command)


def _add_prometheus(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--prometheus",
        metavar="URL",
        help="judge the machines whose dcgm-exporter, node exporter or hetero_hvd it scrapes",
    )
    command.add_argument(
        "--prometheus-token-file",
        type=path_text,
        metavar="FILE",
        help=f"holds the token that it wants, mode 0600 (default: {TOKEN} of the environment)",
    )
    command.add_argument(
        "--prometheus-ca", type=some_path, metavar="FILE", help="certificates of its authority"
    )
    command.add_argument(
        "--match", default="", metavar="LABELS", help="""only series with these, as 'job="dcgm"'"""
    )


def act(arguments: argparse.Namespace) -> int:
    """Print what is advised."""
    if arguments.decline or arguments.recall:
        for line in declined.change(arguments.decline, arguments.recall):
            if not arguments.json:
                show(line)
        if not arguments.run and arguments.prometheus is None:
            return 0
    worth = Worth(goal=arguments.goal)._replace(**dict(arguments.worth))
    if arguments.annotate is not None:
        from hetero_hvd.cli.watch.annotated import annotate  # noqa: PLC0415 - as below

        annotate(arguments.annotate, lambda: _looked(arguments, worth))
        return 0
    said = _said(arguments, worth).without(declined.ids())
    if arguments.json:
        show_json(said)
        return 0
    from hetero_hvd.run.reports.advice import in_words  # noqa: PLC0415 - only this command needs it

    for line in in_words(said):
        show(line)
    return 0


def _looked(arguments: argparse.Namespace, worth: Worth) -> tuple[Advised, bool]:
    """What is advised now, and whether its run goes on: only a run may."""
    from hetero_hvd.run.records.run_files import is_locked  # noqa: PLC0415 - as above

    folders = arguments.run or ([] if arguments.prometheus else [run_of(LATEST)])
    goes_on = any(map(is_locked, folders))
    return _said(arguments, worth).without(declined.ids()), goes_on


def _said(arguments: argparse.Namespace, worth: Worth) -> Advised:
    if arguments.prometheus is not None:
        return _of_prometheus(arguments, worth)
    for flag in ("prometheus_token_file", "prometheus_ca", "match"):
        if getattr(arguments, flag):
            raise UserError(f"--{flag.replace('_', '-')} belongs to --prometheus, which is missing")
    from hetero_hvd.run.recordings.frames import is_recording  # noqa: PLC0415 - as above
    from hetero_hvd.run.reports.advice import advised  # noqa: PLC0415

    folders: list[Path] = arguments.run or [run_of(LATEST)]
    seconds = None if arguments.hours is None else arguments.hours * HOUR_SECONDS
    if seconds is not None and not any(map(is_recording, folders)):
        raise UserError("--hours is of recordings and of --prometheus; a run is judged as a whole")
    return advised(folders, worth, seconds=seconds)


def _of_prometheus(arguments: argparse.Namespace, worth: Worth) -> Advised:
    from hetero_hvd.run.recordings.machine_advice import of_prometheus  # noqa: PLC0415 - as above
    from hetero_hvd.run.recordings.prometheus_api import PrometheusApi  # noqa: PLC0415
    from hetero_hvd.run.recordings.prometheus_samples import read_prometheus  # noqa: PLC0415
    from hetero_hvd.security.token import read_token  # noqa: PLC0415

    if arguments.run:
        raise UserError("--prometheus: machines are judged by it alone; name no RUN beside it")
    found = read_token(arguments.prometheus_token_file, "--prometheus-token-file")
    token = os.environ.get(TOKEN) or None if found is None else found.decode("ascii")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UserError(f"{TOKEN}: must be one line of letters, digits and signs of ASCII")
    api = PrometheusApi(arguments.prometheus, token=token, ca_file=arguments.prometheus_ca)
    hours = arguments.hours or 1.0
    told = read_prometheus(api, time.time(), hours * HOUR_SECONDS, arguments.match)
    return of_prometheus(told, worth, _longer(arguments, min(LONGER * hours, MAX_HOURS)))


def _longer(arguments: argparse.Namespace, hours: float) -> str:
    """The same command over a longer time: what is idle for an hour may be busy by night."""
    words = ["hetero-hvd", "advise", "--prometheus", arguments.prometheus, "--hours", f"{hours:g}"]
    for flag in ("prometheus_token_file", "prometheus_ca", "match"):
        if value := getattr(arguments, flag):
            words += [f"--{flag.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _worth(text: str) -> tuple[str, float]:
    """Which bound, and its value."""
    number, is_percent = text.removesuffix("%"), text.endswith("%")
    try:
        value = float(number) / (100 if is_percent else 1)
    except ValueError:
        try:
            return "seconds", duration("--worth", text)
        except UserError:
            value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a part of at least 0, such as 10%, or a time, such as 30m"
        )
    return "ratio", value


def _hours(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_HOURS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a number of hours above 0 and up to {MAX_HOURS:g}"
        )
    return value
