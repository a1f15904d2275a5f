"""The agent of a node: the actor there runs `python -m hetero_hvd.ray_cluster.agent_program`.

The key comes over standard input, and when that ends so does the agent, with all its workers. It
announces itself to nobody: whoever started it is told the port.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import msgspec

from hetero_hvd.agent.server import AgentServer

MAX_WORKERS = 1024
"""The driver, which alone has the key, starts as many as it has slots."""


class AgentOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the input: the cluster key, as hexadecimal digits."""

    key: str


class AgentPort(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the output: the port."""

    port: int


async def serve(order: AgentOrder, *, file: int) -> None:
    """Serve until the input ends.

    Args:
        order: What to do.
        file: Descriptor to write the port to.

    Raises:
        OSError: There is no port to listen on.
    """
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), _read_on, over)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    server = AgentServer(bytes.fromhex(order.key), num_slots=MAX_WORKERS)
    port = await server.listen(None, 0)
    os.write(file, msgspec.json.encode(AgentPort(port=port)) + b"\n")
    await over.wait()
    loop.remove_reader(sys.stdin.fileno())
    await server.close()


def _read_on(over: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        over.set()


def main() -> int:
    """Serve; gives the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    line = b""
    while not line.endswith(b"\n"):  # by itself: what is buffered would not be seen any more
        character = os.read(sys.stdin.fileno(), 1)
        if not character:
            return 0
        line += character
    order = msgspec.json.decode(line, type=AgentOrder)
    asyncio.run(serve(order, file=sys.stdout.fileno()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
