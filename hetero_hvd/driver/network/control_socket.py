"""Orders to a running job, through a socket in its output folder.

Who may write there is up to the file system: the socket's mode is 0600. One JSON line goes in, one
comes back.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hetero_hvd.errors import JobError, UserError
from hetero_hvd.run.records.run_files import is_locked
from hetero_hvd.security.local_sockets import LocalServer, answer_to, short_path

NAME = "control.sock"
MAX_LINE_BYTES = 4096
TIMEOUT_SECONDS = 10.0

NOT_UNDERSTOOD = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    TimeoutError,
    ConnectionError,
)
"""What a line that is no order leads to."""


class ControlSocket:
    """The driver's end. Used in the loop's thread.

    Args:
        folder: Of the run.
        orders: Name to what carries it out: called with a JSON value; gives what will happen in
            words, or raises UserError.
    """

    def __init__(self, folder: Path, orders: Mapping[str, Callable[[Any], str]]) -> None:
        self._folder = folder
        self._orders = orders
        self._server = LocalServer(
            folder / NAME, self._serve, mode=0o600, max_line_bytes=MAX_LINE_BYTES
        )

    async def listen(self) -> None:
        """Accept orders.

        Raises:
            JobError: The socket cannot be made.
        """
        remove_dead(self._folder.absolute().parent)
        await self._server.listen()

    def close(self) -> None:
        """Accept no more."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), TIMEOUT_SECONDS)
            ((name, value),) = json.loads(line).items()
            answer = {"done": self._orders[name](value)}
        except UserError as error:
            answer = {"error": str(error)}
        except NOT_UNDERSTOOD:
            names = ", ".join(self._orders)
            answer = {"error": f"not understood: must be one line, {{ORDER: VALUE}}, of {names}"}
        with suppress(ConnectionError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def newest_run(runs: Path = Path("runs")) -> Path:
    """The folder of the run that was started last and still takes orders.

    Raises:
        JobError: There is none.
    """
    remove_dead(runs)
    found = {path.parent: path.stat().st_mtime for path in runs.glob(f"*/{NAME}") if _lives(path)}
    if not found:
        raise JobError(f"no running job in {runs.absolute()}: name it by its folder")
    return max(found, key=found.__getitem__)


def remove_dead(runs: Path) -> None:
    """Remove the sockets of drivers that were killed, from all runs in a folder.

    Of a driver on another machine, which shares the folder, nobody here is behind its socket: but
    it holds its run's folder.
    """
    for path in runs.glob(f"*/{NAME}"):
        if not (_lives(path) or is_locked(path.parent)):
            with suppress(OSError):
                path.unlink()


def _lives(path: Path) -> bool:
    """Whether a driver is behind this socket; only a refusal proves that there is none here."""
    try:
        with short_path(path) as short, socket.socket(socket.AF_UNIX) as end:
            end.settimeout(TIMEOUT_SECONDS)
            end.connect(short)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True


def order(folder: Path, name: str, value: object) -> str:
    """Give the driver of a run an order.

    Args:
        folder: Of the run.
        name: `drain` or `trace`.
        value: For `drain` NODE or NODE:SLOT, for `trace` the fields of `traces.TraceOrder`.

    Returns:
        What will happen, in words.

    Raises:
        JobError: No driver answers there, or it refuses.
    """
    try:
        asked = json.dumps({name: value}).encode() + b"\n"
        line = answer_to(
            folder / NAME, asked, wait_seconds=TIMEOUT_SECONDS, max_bytes=MAX_LINE_BYTES
        )
    except OSError as error:
        raise JobError(f"no job takes orders in {folder}: {error.strerror or error}") from error
    answer = json.loads(line or b'{"error": "the driver has ended"}')
    if "error" in answer:
        raise JobError(str(answer["error"]))
    return str(answer["done"])
