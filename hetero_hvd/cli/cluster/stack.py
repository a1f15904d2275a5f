"""`hetero-hvd stack`: what Prometheus, Alertmanager and Grafana need to watch a run."""

from __future__ import annotations

import argparse
import re

from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.deploy.folder import FolderContents, write_folder
from hetero_hvd.errors import UserError
from hetero_hvd.monitoring.files import stack_files

ADDRESS = re.compile(r"https?://[^\s/]+:\d+/?")
RECEIVER = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The flags."""
    command.add_argument("folder", type=some_path, metavar="DIR", help="where to write them")
    command.add_argument(
        "--driver",
        required=True,
        metavar="URL",
        help="http[s]://HOST:PORT of the driver; give it a fixed port with http_port",
    )
    command.add_argument(
        "--token-file", type=path_text, metavar="FILE", help="with the driver's token for looking"
    )
    command.add_argument(
        "--ca-file", type=path_text, metavar="FILE", help="certificate authority of the driver"
    )
    command.add_argument(
        "--hub",
        metavar="URL",
        help="http[s]://HOST:PORT of a hub with a queue; token and authority as of the driver",
    )
    command.add_argument(
        "--alerts-to",
        metavar="URL",
        help="where Alertmanager sends alerts as JSON, such as a gateway on its machine; without "
        "password or token, which belong on no command line (default: its page only)",
    )


def act(arguments: argparse.Namespace) -> int:
    """Write the files and name them."""
    for flag, address in (("--driver", arguments.driver), ("--hub", arguments.hub)):
        if address is not None and ADDRESS.fullmatch(address) is None:
            raise UserError(f"{flag}: found {address!r}, must be http[s]://HOST:PORT")
    if arguments.alerts_to is not None and RECEIVER.fullmatch(arguments.alerts_to) is None:
        raise UserError(
            "--alerts-to: must be http[s]://HOST[:PORT][/PATH] without password or token"
        )
    files = stack_files(
        driver=arguments.driver,
        token_file=arguments.token_file,
        ca_file=arguments.ca_file,
        alerts_to=arguments.alerts_to,
        hub=arguments.hub,
    )
    for file in write_folder(arguments.folder, FolderContents(files=files), force=True):
        print(file)
    return 0
