"""What ssh is for launcher ssh: `python -m hetero_hvd.agent.client ADDRESS PORT KEY_FILE`.

Connects to a node's agent, has it start a worker's supervisor for the job that `--job` names, and
passes input, output and exit code through. When this process ends, so do the connection, the
supervisor and the worker.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from hetero_hvd.config.paths import own_path
from hetero_hvd.config.value_types import host_in_url
from hetero_hvd.discovery import agent_link as link
from hetero_hvd.errors import ChannelError, UserError
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION
from hetero_hvd.security.cluster_key import read_key
from hetero_hvd.security.cluster_tls import ClientTls, for_driver, for_driver_with
from hetero_hvd.security.web_socket import (
    ClientConnection,
    InvalidStatus,
    Response,
    WebSocketException,
    connected,
)

MAX_REFUSAL_BYTES = 500
PING_SECONDS = 5.0
"""Between two signs of life; after as long without an answer the connection is dead."""


async def dial(address: str, port: int, tls: ClientTls, start: link.Start) -> int:
    """Run a supervisor on a node; for the main coroutine of a process of its own.

    Args:
        address: Of the node.
        port: Of its agent.
        tls: By which both ends are sure of each other.
        start: What the agent should do.

    Returns:
        The supervisor's exit code.

    Raises:
        ChannelError: The other end is no agent of this cluster, or the connection broke.
        OSError: There is no connection.
    """
    try:
        async with connected(
            f"wss://{host_in_url(address)}:{port}{link.PATH}",
            tls,
            subprotocol=link.subprotocol(),
            max_frame_bytes=link.MAX_FRAME_BYTES,
            ping_seconds=PING_SECONDS,
        ) as socket:
            if socket.subprotocol is None:
                raise ChannelError(
                    "the agent is of an older hetero_hvd, the driver "
                    f"{link.subprotocol()}: {link.REMEDY}"
                )
            await socket.send(link.encode(start))
            feeder = None if start.what == "gpus" else asyncio.create_task(_feed(socket.send))
            try:
                return await _show(socket)
            finally:
                if feeder is not None:
                    feeder.cancel()
    except InvalidStatus as error:
        raise ChannelError(_refusal(error.response)) from error
    except WebSocketException as error:
        raise ChannelError(f"the connection broke: {error}") from error
    except ssl.SSLError as error:
        raise ChannelError(_in_words(error, tls)) from error


def _in_words(error: ssl.SSLError, tls: ClientTls) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"no TLS as ours, is the agent of another version? {error}"
    if tls.by_key:
        return "the other end does not hold this cluster's key, or it has a TLS file, we have not"
    return f"its certificate is not that of node {tls.name}: {error.verify_message}"


def _refusal(response: Response) -> str:
    """What an agent answers that does not open the link."""
    if response.status_code != HTTPStatus.UPGRADE_REQUIRED:
        return f"the other end is no agent of this version: HTTP {response.status_code}"
    text = response.body[:MAX_REFUSAL_BYTES].decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)


async def _feed(send: Callable[[bytes], Awaitable[None]]) -> None:
    """Pass on our input until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    with suppress(WebSocketException):
        while chunk := await reader.read(65536):
            await send(link.encode(link.Data(data=chunk)))
        await send(link.encode(link.Data(data=b"")))


async def _show(socket: ClientConnection) -> int:
    """Write the supervisor's output, until it says with which code it ended."""
    async for frame in socket:
        match link.decode(frame):
            case link.Data(data=data):
                _write(data)
            case link.Exited(code=code):
                return code
            case _:
                raise ChannelError("an agent must not ask for anything")
    raise ChannelError("the agent has closed the connection")


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def main() -> int:
    """Dial; gives the exit code."""
    parser = argparse.ArgumentParser(prog="hetero_hvd.agent.client")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("key_file", type=Path)
    parser.add_argument("--tls", nargs=2, metavar=("FILE", "NAME"))
    parser.add_argument("--job", default="")
    for what in ("gpus", "samples"):
        parser.add_argument(
            f"--{what}", dest="what", action="store_const", const=what, default="worker"
        )
    given = parser.parse_args()
    try:
        if given.tls:
            tls = for_driver_with(own_path(given.tls[0], "tls_file"), given.tls[1])
        else:
            tls = for_driver(read_key(own_path(given.key_file, "identity_file")))
        start = link.Start(what=given.what, job=given.job)
        return asyncio.run(dial(given.address, given.port, tls, start))
    except (OSError, UserError, ChannelError) as error:  # ssl.SSLError is an OSError
        sys.stderr.write(f"agent at {given.address} port {given.port}: {error}\n")
        return EXIT_NO_CONNECTION


if __name__ == "__main__":
    sys.exit(main())
