"""`hetero-hvd agent`: offer this machine to the cluster."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_hvd import __version__
from hetero_hvd.config.launchers import AGENT_PORT
from hetero_hvd.core.redaction import redacted
from hetero_hvd.errors import UserError
from hetero_hvd.messages import NODE_NAME

if TYPE_CHECKING:
    from hetero_hvd.agent.interruptions import MetadataService

CLOUDS = ("aws", "azure", "gcp")
SUMMARY = "announce this machine as a node and start its workers for drivers with the same key"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "--key-file", type=Path, default=Path("cluster.key"), help="default: cluster.key"
    )
    command.add_argument("--name", default=None, help="of the node (default: the host's name)")
    command.add_argument(
        "--slots",
        default=None,
        help="workers that it starts; 0: it only tells of the node (default: one per GPU, or 1)",
    )
    command.add_argument("--address", default=None, help="listen here only (default: everywhere)")
    command.add_argument(
        "--announce-to",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="also announce to the driver at this address, where multicast ends at a router: what "
        "`hetero-hvd run --listen PORT` was given there; may be given again",
    )
    command.add_argument(
        "--token-file",
        default=None,
        help="mode 0600; who shows its token may read /metrics and /hardware (default: nobody)",
    )
    command.add_argument(
        "--tls-file",
        type=Path,
        default=None,
        help="made by hetero-hvd certificates for this node: drivers are then known by theirs "
        "(default: by the cluster key)",
    )
    command.add_argument(
        "--cloud",
        choices=CLOUDS,
        default=None,
        help="ask its metadata service whether it takes this machine away (spot, preemptible), and "
        "then leave in order (default: nobody is asked)",
    )
    command.add_argument(
        "--metadata-url", default=None, help="of that service, where it is not at its usual place"
    )
    command.add_argument("--port", default=str(AGENT_PORT), help=f"default: {AGENT_PORT}; 0 = any")


def act(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    from hetero_hvd.agent.service import AgentOptions, serve_node  # noqa: PLC0415 - not for all
    from hetero_hvd.discovery.unicast import AnnounceTarget  # noqa: PLC0415 - not for all
    from hetero_hvd.security.cluster_key import read_key  # noqa: PLC0415 - not for all
    from hetero_hvd.security.tls import read_bundle, server_context  # noqa: PLC0415 - not for all
    from hetero_hvd.security.token import read_token  # noqa: PLC0415 - not for all

    tls_file: Path | None = arguments.tls_file
    name = arguments.name or platform.node()
    if NODE_NAME.fullmatch(name) is None:
        raise UserError(f"--name: found {name!r}, must be letters, digits, '-' and '.', at most 64")
    options = AgentOptions(
        key=read_key(arguments.key_file),
        name=name,
        slots=None if arguments.slots is None else _number("--slots", arguments.slots, 0, 1024),
        address=None if arguments.address is None else _address(arguments.address),
        port=_number("--port", arguments.port, 0, 65535),
        token=read_token(arguments.token_file, "--token-file"),
        tls=None if tls_file is None else server_context(read_bundle(tls_file)),
        version=__version__,
        announce_to=tuple(
            AnnounceTarget.read(text, "--announce-to") for text in arguments.announce_to
        ),
        cloud=_cloud(arguments.cloud, arguments.metadata_url),
    )
    if options.cloud is None and arguments.metadata_url is not None:
        raise UserError("--metadata-url needs --cloud: say whose service it is")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("zeroconf").setLevel(logging.ERROR)  # has a traceback for each cable pulled
    asyncio.run(serve_node(options))
    return 0


def _cloud(name: str | None, url: str | None) -> MetadataService | None:
    if name is None:
        return None
    from hetero_hvd.agent.interruptions import PROVIDERS  # noqa: PLC0415 - not for all

    if url is not None and not re.fullmatch(r"http://[A-Za-z0-9.:\[\]-]+/?", url):
        raise UserError(f"--metadata-url: found {redacted(url)!r}, must be http://HOST[:PORT]")
    return PROVIDERS[name](url)


def _number(flag: str, text: str, minimum: int, maximum: int) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if not minimum <= number <= maximum:
        raise UserError(f"{flag}: found {text!r}, must be an integer from {minimum} to {maximum}")
    return number


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise UserError(f"--address: found {text!r}, must be an IPv4 or IPv6 address") from error
