"""`hetero-hvd hub`: store what the agents of a cluster tell of their nodes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_hvd.cli.own_address import own_address
from hetero_hvd.cli.queue.hub_queue import add_queue, queue_of
from hetero_hvd.cli.record.times import duration, positive
from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.config.variables import refuse_unknown
from hetero_hvd.core.digits import whole_number
from hetero_hvd.errors import UserError

if TYPE_CHECKING:
    from hetero_hvd.core.recording.retention import Retention
    from hetero_hvd.hub.service import HubHttp

HELP = """\
Store what all agents of the cluster tell of their nodes, for recordings; on request
tell all jobs which nodes announce themselves here (--listen) and give devices to jobs
(--queue). Ends with 0 at SIGTERM or Ctrl-C, with 2 where something that was given is
wrong, with 75 where the same may succeed later: a port is taken, the disk is full."""
STORE = Path("hub")
MAX_PORT = 65535
HTTP_ADDRESS = "127.0.0.1"
_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
"""As browsers tell it: without a slash at the end."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.register("action", None, _Once)
    command.add_argument(
        "--key-file", type=some_path, default=Path("cluster.key"), help="default: cluster.key"
    )
    command.add_argument(
        "--store", type=some_path, default=STORE, metavar="DIR", help=f"default: {STORE}"
    )
    command.add_argument("--address", default=None, help="listen here only (default: everywhere)")
    command.add_argument("--port", default="9391", help="default: 9391; 0 = any")
    command.add_argument(
        "--listen",
        default="0",
        metavar="PORT",
        help="UDP port at which nodes announce themselves (agent --announce-to), for all jobs with "
        "--discover; 0 = none (default: 0)",
    )
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
    add_queue(command)
    _add_http(command)


def _add_http(command: argparse.ArgumentParser) -> None:
    command.add_argument("--http-port", default="0", help="of the API; 0 = none (default: 0)")
    command.add_argument("--http-address", help=f"default: {HTTP_ADDRESS}")
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
        help="pages of it, such as https://grafana.lab, may ask, too; may be given again",
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
        address=None if arguments.address is None else own_address(arguments.address),
        port=_port("--port", arguments.port),
        listen=_listen(arguments.listen),
        http=_http(arguments),
        retention=_retention(arguments),
        queue=queue_of(arguments),
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
    from hetero_hvd.hub.service import HubHttp  # noqa: PLC0415
    from hetero_hvd.run.web.access import Access  # noqa: PLC0415
    from hetero_hvd.run.web.server import HttpEnd  # noqa: PLC0415
    from hetero_hvd.security.token import token_file  # noqa: PLC0415

    port = _port("--http-port", arguments.http_port)
    _check_http(arguments, port)
    if not port:
        return None
    address = HTTP_ADDRESS if arguments.http_address is None else arguments.http_address
    read, ingest, operate = (
        token_file(getattr(arguments, f"http_{role}_token_file"), f"--http-{role}-token-file")
        for role in ("read", "ingest", "operate")
    )
    certificate = arguments.http_certificate
    if not is_loopback(address) and (read is None or certificate is None):
        raise UserError(
            f"--http-address: {address} is reached by others: needs --http-read-token-file, and "
            "--http-certificate, as tokens cross no network in plain text"
        )
    return HubHttp(
        end=HttpEnd(
            address=address,
            port=port,
            certificate=certificate,
            key=arguments.http_key,
            settings="--http-",
        ),
        access=Access(
            address=address,
            read=read,
            operate=operate,
            ingest=ingest,
            origins=tuple(arguments.http_cors),
        ),
    )


def _check_http(arguments: argparse.Namespace, port: int) -> None:
    """See that nothing is said in vain of the API.

    Raises:
        UserError: Something is.
    """
    from hetero_hvd.config.value_types import HOST  # noqa: PLC0415 - not for all

    given = [name for name, value in vars(arguments).items() if name.startswith("http_") and value]
    given.remove("http_port")
    if given and not port:
        raise UserError(f"--{given[0].replace('_', '-')}: needs --http-port, which is 0: no API")
    if (arguments.http_certificate is None) != (arguments.http_key is None):
        raise UserError("--http-certificate: must be given together with --http-key")
    address = arguments.http_address
    if address is not None and not HOST.admits(address):
        raise UserError(f"--http-address: found {address!r}, must be {HOST.allowed}")
    for origin in arguments.http_cors:
        if _ORIGIN.fullmatch(origin) is None:
            raise UserError(
                f"--http-cors: found {origin!r}, must be as a browser tells it, in small letters "
                "and without a slash at the end: https://grafana.lab or http://10.0.0.7:3000"
            )


def _port(flag: str, text: str) -> int:
    number = whole_number(text)
    if number is None or number > MAX_PORT:
        raise UserError(f"{flag}: found {text!r}, must be an integer from 0 to {MAX_PORT}")
    return number


def _listen(text: str) -> int:
    from hetero_hvd.config.job import MULTICAST_PORT  # noqa: PLC0415 - not for all

    if (number := _port("--listen", text)) == MULTICAST_PORT:
        raise UserError(f"--listen: found {number}, must be another port: that is of multicast")
    return number


class _Once(argparse.Action):
    """For a flag with one value: the last one of two does not count in silence."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - as argparse calls it
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        given = vars(namespace).setdefault("given", set())
        if self.dest in given:
            raise argparse.ArgumentError(self, "given twice, may be given once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)
