"""`hetero-hvd key certificates`: what TLS between driver and agents needs."""

from __future__ import annotations

import argparse

from hetero_hvd.cli.lines import show
from hetero_hvd.config.paths import some_path
from hetero_hvd.config.value_types import HOST
from hetero_hvd.errors import UserError
from hetero_hvd.messages import NODE_NAME


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("folder", type=some_path, help="keeps authority.pem, which stays secret")
    command.add_argument(
        "nodes",
        nargs="+",
        metavar="NAME[,ADDRESS...]",
        help="of a node, with the addresses at which Prometheus may ask it; or `driver`",
    )


def act(arguments: argparse.Namespace) -> int:
    """Make FOLDER/NAME.pem for each node."""
    from hetero_hvd.security.certificates import Authority  # noqa: PLC0415 - heavy
    from hetero_hvd.security.cluster_tls import DRIVER_NAME  # noqa: PLC0415 - not for all
    from hetero_hvd.security.secret_files import write_secret  # noqa: PLC0415 - not for all

    nodes = [entry.split(",") for entry in arguments.nodes]
    for name, *addresses in nodes:
        if NODE_NAME.fullmatch(name) is None or name == "authority":
            raise UserError(f"{name!r}: must be the name of a node, or `driver`")
        for address in addresses:
            if not HOST.admits(address):
                raise UserError(f"{address!r}: must be {HOST.allowed}")
    try:
        arguments.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.of_folder(arguments.folder)
        for name, *addresses in nodes:
            path = arguments.folder / f"{name}.pem"
            write_secret(path, authority.issue(name, *addresses))
            where = "the driver's machine, if that is another one," if name == DRIVER_NAME else name
            show(f"{path}: copy it to {where} over a safe way")
    except OSError as error:
        raise UserError(f"{arguments.folder}: {error.strerror}") from error
    return 0
