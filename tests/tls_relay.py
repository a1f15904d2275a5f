"""Who sits between two ends of TLS, and what he may try with what he sees."""

from __future__ import annotations

import asyncio


class Relay:
    """Somebody between a client and a server, who passes TLS records on as an attack wants.

    Args:
        port: The server's.
        attack: Given a record of the client's, and what to write to the server and to the client.

    Attributes:
        is_attacking: Else it passes on what comes.
        seen: All records of the client's.
    """

    def __init__(self, port, attack=None):
        self._port = port
        self._attack = attack
        self.is_attacking = False
        self.seen = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return self, self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_):
        self._server.close()

    async def _pass_on(self, reader, writer):
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.create_task(self._pass_back(from_server, writer))
        try:
            while True:
                head = await reader.readexactly(5)
                record = head + await reader.readexactly(int.from_bytes(head[3:], "big"))
                self.seen.append(record)
                if self.is_attacking:
                    self._attack(record, to_server.write, writer.write)
                else:
                    to_server.write(record)
        except (asyncio.IncompleteReadError, ConnectionError):
            to_server.close()
            await back
            writer.close()

    async def _pass_back(self, reader, writer):
        try:
            while content := await reader.read(65536):
                writer.write(content)
        except ConnectionError:
            pass
        writer.close()


def overtake():
    """Holds each first record back until the next one has gone."""
    held = []

    def attack(record, to_server, _):
        held.append(record)
        if len(held) == 2:
            to_server(held.pop())
            to_server(held.pop())

    return attack


def leave_out():
    """Swallows the first record."""
    seen = []

    def attack(record, to_server, _):
        if seen:
            to_server(record)
        seen.append(record)

    return attack


def change(position):
    """Flips a bit of each record."""

    def attack(record, to_server, _):
        changed = bytearray(record)
        changed[position] ^= 1
        to_server(bytes(changed))

    return lambda: attack


ATTACKS = {
    "changed at its head": change(0),
    "changed in its length": change(4),
    "changed": change(8),
    "changed at its end": change(-1),
    "repeated": lambda: lambda record, to_server, _: to_server(2 * record),
    "overtaken": overtake,
    "left out": leave_out,
    "reflected": lambda: lambda record, _, to_client: to_client(record),
    "noise": lambda: lambda _, to_server, __: to_server(b"\x17\x03\x03\x00\x20" + bytes(32)),
}
