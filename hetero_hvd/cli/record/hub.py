"""`hetero-hvd hub`: store what the agents of a cluster tell of their nodes."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_hvd.cli.record.times import duration, positive
from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.config.variables import refuse_unknown
from hetero_hvd.core.digits import whole_number
from hetero_hvd.errors import UserError

if TYPE_CHECKING:
    from hetero_hvd.core.recording.retention import Retention
    from hetero_hvd.hub.service import HubHttp

SUMMARY = "store what all agents of the cluster tell of their nodes, for recordings"
STORE = Path("hub")
MAX_PORT = 65535


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument(
        "--key-file", type=some_path, default=Path("cluster.key"), help="default: cluster.key"
    )
    command.add_argument(
        "--store", type=some_path, default=STORE, metavar="DIR", help=f"default: {STORE}"
    )
    command.add_argument("--address", default=None, help="listen here only (default: everywhere)")
    command.add_argument("--port", default="9391", help="default: 9391; 0 = any")

    command.add_argument(
        "--keep",
        metavar="TIME",
        help="delete samples that are older, such as 30d, unless their session says how long they "
        "stay (default: none)",
    )
    command.add_argument(
        "--keep-bytes",
        metavar="BYTES",
        help="delete the oldest samples beyond so many bytes (default: none)",
    )
    _add_http(command)


def _add_http(command: argparse.ArgumentParser) -> None:
    command.add_argument("--http-port", default="0", help="of the API; 0 = none (default: 0)")
    command.add_argument("--http-address", default="127.0.0.1", help="default: 127.0.0.1")
    for role, what in (
        ("read", "look (default: all who reach it)"),
        ("ingest", "send samples of other programs (default: who may operate)"),
        ("operate", "start, stop and cut (default: nobody)"),
    ):
        command.add_argument(
            f"--http-{role}-token-file",
            type=path_text,
            metavar="FILE",
            help=f"mode 0600; who shows its token may {what}",
        )
    command.add_argument(
        "--http-certificate", type=path_text, metavar="FILE", help="PEM (default: plain text)"
    )
    command.add_argument(
        "--http-key", type=path_text, metavar="FILE", help="PEM, of the certificate"
    )
    command.add_argument(
        "--http-cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="pages of https://ORIGIN may ask, too; may be given again",
    )


def act(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    from hetero_hvd.hub.service import HubOptions, serve_cluster  # noqa: PLC0415 - not for all
    from hetero_hvd.security.cluster_key import read_key  # noqa: PLC0415 - not for all

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("zeroconf").setLevel(logging.ERROR)  # has a traceback for each cable pulled
    refuse_unknown(os.environ)
    options = HubOptions(
        key=read_key(arguments.key_file),
        store=arguments.store,
        address=None if arguments.address is None else _address(arguments.address),
        port=_port("--port", arguments.port),
        http=_http(arguments),
        retention=_retention(arguments),
    )
    asyncio.run(serve_cluster(options))
    return 0


def _retention(arguments: argparse.Namespace) -> Retention:
    from hetero_hvd.core.recording.retention import Retention  # noqa: PLC0415 - not for all

    age = None if arguments.keep is None else duration("--keep", arguments.keep)
    size = arguments.keep_bytes
    return Retention(age, None if size is None else positive("--keep-bytes", size))


def _http(arguments: argparse.Namespace) -> HubHttp | None:
    from hetero_hvd.config.value_types import is_loopback  # noqa: PLC0415 - not for all
    from hetero_hvd.hub.http.api import HubAccess  # noqa: PLC0415
    from hetero_hvd.hub.service import HubHttp  # noqa: PLC0415
    from hetero_hvd.run.web.access import Access  # noqa: PLC0415
    from hetero_hvd.run.web.server import HttpEnd  # noqa: PLC0415
    from hetero_hvd.security.token import read_token  # noqa: PLC0415

    port, address = _port("--http-port", arguments.http_port), arguments.http_address
    if not port:
        return None
    read, ingest, operate = (
        read_token(getattr(arguments, f"http_{role}_token_file"), f"--http-{role}-token-file")
        for role in ("read", "ingest", "operate")
    )
    certificate = arguments.http_certificate
    if not is_loopback(address) and (read is None or certificate is None):
        raise UserError(
            f"--http-address: {address} is reached by others: needs --http-read-token-file, and "
            "--http-certificate, as tokens cross no network in plain text"
        )
    access = Access(address=address, read=read, operate=operate)
    return HubHttp(
        end=HttpEnd(address=address, port=port, certificate=certificate, key=arguments.http_key),
        access=HubAccess(access=access, ingest=ingest, origins=tuple(arguments.http_cors)),
    )


def _port(flag: str, text: str) -> int:
    number = whole_number(text)
    if number is None or number > MAX_PORT:
        raise UserError(f"{flag}: found {text!r}, must be an integer from 0 to {MAX_PORT}")
    return number


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise UserError(f"--address: found {text!r}, must be an IPv4 or IPv6 address") from error
