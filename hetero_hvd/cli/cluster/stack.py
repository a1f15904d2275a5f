"""`hetero-hvd stack`: what Prometheus, Alertmanager and Grafana need to watch a run."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from hetero_hvd.cli.lines import show
from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.deploy.folder import FolderContents, with_mark, write_folder
from hetero_hvd.errors import UserError
from hetero_hvd.monitoring.files import WatchedPlaces, stack_files

ADDRESS = re.compile(r"https?://[^\s/@]+:\d+/?")
PATTERN = frozenset("*?[\\")
RECEIVER = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The flags."""
    command.add_argument("folder", type=some_path, metavar="DIR", help="where to write them")
    command.add_argument(
        "--force",
        action="store_true",
        help="replace files of the same names in DIR (default: only those of an earlier call)",
    )
    command.add_argument(
        "--runs",
        type=some_path,
        metavar="DIR",
        help="above the folders of runs on the machine of Prometheus, such as runs/: each that "
        "comes is watched until it goes",
    )
    command.add_argument(
        "--hub",
        metavar="URL",
        help="http[s]://HOST:PORT of a hub: its queue, and each run that it hears of until it goes",
    )
    command.add_argument(
        "--driver",
        metavar="URL",
        help="http[s]://HOST:PORT of one driver; give it a fixed port with http_port",
    )
    command.add_argument(
        "--token-file",
        type=path_text,
        metavar="FILE",
        help="with the token for looking, the same for all",
    )
    command.add_argument(
        "--ca-file", type=path_text, metavar="FILE", help="certificate authority, the same for all"
    )
    command.add_argument(
        "--alerts-to",
        metavar="URL",
        help="where Alertmanager sends alerts as JSON, such as a gateway on its machine; without "
        "password or token, which belong on no command line (default: its page only)",
    )


def act(arguments: argparse.Namespace) -> int:
    """Write the files and name them."""
    if arguments.runs is None and arguments.hub is None and arguments.driver is None:
        raise UserError(
            "nothing to watch: say where runs are, by --runs DIR, --hub URL or --driver URL"
        )
    for flag, address in (("--driver", arguments.driver), ("--hub", arguments.hub)):
        if address is not None and ADDRESS.fullmatch(address) is None:
            raise UserError(f"{flag}: must be http[s]://HOST:PORT, without name and password")
    if arguments.alerts_to is not None and RECEIVER.fullmatch(arguments.alerts_to) is None:
        raise UserError(
            "--alerts-to: must be http[s]://HOST[:PORT][/PATH] without password or token"
        )
    files = stack_files(
        WatchedPlaces(driver=arguments.driver, runs=_watched(arguments.runs), hub=arguments.hub),
        token_file=arguments.token_file,
        ca_file=arguments.ca_file,
        alerts_to=arguments.alerts_to,
    )
    marked = {name: with_mark(text, is_json=name.endswith(".json")) for name, text in files.items()}
    contents = FolderContents(files=marked, is_shared=True)
    for file in write_folder(arguments.folder, contents, force=arguments.force):
        show(str(file))
    return 0


def _watched(runs: Path | None) -> str | None:
    """The folder as Prometheus is told it.

    Raises:
        UserError: Prometheus would take its name for a pattern.
    """
    if runs is None:
        return None
    found = str(runs.absolute())
    if marks := sorted(PATTERN & set(found)):
        raise UserError(
            f"--runs: found {found!r}, must be without {' '.join(marks)}, which are a pattern to "
            "Prometheus; watch a folder of another name"
        )
    return found
