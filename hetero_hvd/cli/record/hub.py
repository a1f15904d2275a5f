"""`hetero-hvd hub`: store what the agents of a cluster tell of their nodes."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
from pathlib import Path

from hetero_hvd.errors import UserError

SUMMARY = "store what all agents of the cluster tell of their nodes, for recordings"
STORE = Path("hub")
MAX_PORT = 65535


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "--key-file", type=Path, default=Path("cluster.key"), help="default: cluster.key"
    )
    command.add_argument(
        "--store", type=Path, default=STORE, metavar="DIR", help=f"default: {STORE}"
    )
    command.add_argument("--address", default=None, help="listen here only (default: everywhere)")
    command.add_argument("--port", default="9391", help="default: 9391; 0 = any")


def act(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    from hetero_hvd.hub.service import HubOptions, serve_cluster  # noqa: PLC0415 - not for all
    from hetero_hvd.security.cluster_key import read_key  # noqa: PLC0415 - not for all

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    options = HubOptions(
        key=read_key(arguments.key_file),
        store=arguments.store,
        address=None if arguments.address is None else _address(arguments.address),
        port=_port(arguments.port),
    )
    asyncio.run(serve_cluster(options))
    return 0


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= number <= MAX_PORT:
        raise UserError(f"--port: found {text!r}, must be an integer from 0 to {MAX_PORT}")
    return number


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise UserError(f"--address: found {text!r}, must be an IPv4 or IPv6 address") from error
