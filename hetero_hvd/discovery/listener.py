"""Hears the adverts of others, at a bounded cost whatever the network sends.

A socket of our own beside zeroconf's: it tells who sent a packet, so that one sender's flood is
told from the others' adverts, and it keeps nothing of what came.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import Counter
from contextlib import suppress

from hetero_hvd.discovery.advert import OF_NODE, AdvertKind
from hetero_hvd.discovery.multicast import GROUP, GROUP6, PORT, adverts_in, question
from hetero_hvd.probes.machine.hardware import interfaces
from hetero_hvd.security.connection_limiter import plain_address

logger = logging.getLogger(__name__)

MAX_PACKET_BYTES = 9000
"""Of multicast DNS (RFC 6762, section 17)."""

MAX_FROM_ONE = 32
"""Packets of one sender between two ticks. An agent sends three when it starts."""

MAX_FROM_ALL = 1024
"""Packets of all senders between two ticks; about 30 ms to parse and check them all."""

READS_PER_TURN = 64
RECEIVE_BUFFER_BYTES = 2**20
_MULTICAST_ALL = 49  # IP_MULTICAST_ALL of linux/in.h: 0 = only the groups that this socket joined


class ListenPortError(OSError):
    """The port for those who announce themselves to an address cannot be had."""


class AdvertListener:
    """Collects the TXT records of our service; what is too much is dropped and counted.

    Nothing is ever resolved: all that matters is inside, signed, so that a forged advert makes us
    send nothing. Zeroconf's own good-bye is not signed, hence not listened to.

    Args:
        port: UDP port for those who announce themselves to an address of this machine; 0: none.
        kind: Whose adverts are heard.
        address: Of this machine, to which they do; None: any.

    Attributes:
        dropped: Packets that were too large, or too many.
    """

    def __init__(
        self, port: int = 0, kind: AdvertKind = OF_NODE, *, address: str | None = None
    ) -> None:
        self.dropped = 0
        self._kind = kind
        self._address = address
        self._port = port
        self._doors: list[socket.socket] = []
        self._waiting: list[tuple[str, bytes]] = []
        self._num_from: Counter[str] = Counter()
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}
        self._joined: set[tuple[int, int]] = set()

    async def open(self) -> None:
        """Listen on all interfaces, and ask who is there.

        Raises:
            ListenPortError: The port cannot be had.
            OSError: There is no network to listen on.
        """
        loop = asyncio.get_running_loop()
        for family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # a machine may have one of the two only
                self._sockets[family] = end = _bound(family)
                loop.add_reader(end, self._read, end)
        try:
            if self._port:
                self._open_doors()
        except OSError as error:
            await self.close()
            words = f"UDP port {self._port}: {error.strerror}"
            raise ListenPortError(error.errno, words) from error
        self.ask()
        if not self._joined and not self._doors:
            await self.close()
            raise OSError("no interface can do multicast")

    def ask(self) -> None:
        """Ask all agents to announce themselves; on interfaces that came up since, too."""
        names = []
        with suppress(OSError):  # no descriptor is free to look at them: it is asked again
            names = [interface.name for interface in interfaces() if interface.is_up]
        for family, end in self._sockets.items():
            for name in names:
                with suppress(OSError):  # not all can do multicast; some are just gone
                    self._ask_on(family, end, socket.if_nametoindex(name))

    async def close(self) -> None:
        """Listen no more."""
        for end in (*self._sockets.values(), *self._doors):
            asyncio.get_running_loop().remove_reader(end)
            end.close()
        self._sockets.clear()
        self._joined.clear()  # they were of these sockets
        self._doors.clear()

    def heard(self, sender: str, packet: bytes) -> None:
        """A packet came.

        Args:
            sender: Address that it claims to come from.
            packet: All of it.
        """
        is_too_much = len(packet) > MAX_PACKET_BYTES or len(self._waiting) >= MAX_FROM_ALL
        if is_too_much or self._num_from[sender] >= MAX_FROM_ONE:
            self.dropped += 1
            return
        self._num_from[sender] += 1
        self._waiting.append((sender, packet))

    def take(self) -> list[tuple[str, bytes]]:
        """What came since the last time, for once in each tick: (sender, raw TXT record)."""
        waiting, self._waiting = self._waiting, []
        self._num_from.clear()
        return [
            (sender, text) for sender, packet in waiting for text in adverts_in(packet, self._kind)
        ]

    def _open_doors(self) -> None:
        """Where packets for this machine alone come.

        Raises:
            OSError: Another program has the port.
        """
        is_dual = self._address is None and socket.has_dualstack_ipv6()
        address = self._address or ("::" if is_dual else "")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        end = socket.socket(family, socket.SOCK_DGRAM)
        self._doors.append(end)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if is_dual:
            end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        end.bind((address, self._port))
        end.setblocking(False)
        asyncio.get_running_loop().add_reader(end, self._read, end)

    def _read(self, end: socket.socket) -> None:
        """Called by the loop: take packets from the kernel, then let others have their turn."""
        with suppress(OSError):  # BlockingIOError: no more are there
            for _ in range(READS_PER_TURN):
                packet, address = end.recvfrom(MAX_PACKET_BYTES + 1)
                self.heard(plain_address(str(address[0])), packet)

    def _ask_on(self, family: socket.AddressFamily, end: socket.socket, index: int) -> None:
        """Join the group on an interface, once, and ask there."""
        is_v4 = family == socket.AF_INET
        group = socket.inet_pton(family, GROUP if is_v4 else GROUP6)
        level = socket.IPPROTO_IP if is_v4 else socket.IPPROTO_IPV6
        join = socket.IP_ADD_MEMBERSHIP if is_v4 else socket.IPV6_JOIN_GROUP
        speak = socket.IP_MULTICAST_IF if is_v4 else socket.IPV6_MULTICAST_IF
        there = struct.pack("=4s4si", group, bytes(4), index) if is_v4 else None
        if (family, index) not in self._joined:
            end.setsockopt(level, join, there or struct.pack("=16si", group, index))
            self._joined.add((family, index))
        end.setsockopt(level, speak, there or struct.pack("=i", index))
        end.sendto(question(self._kind), (GROUP if is_v4 else GROUP6, PORT))


def _bound(family: socket.AddressFamily) -> socket.socket:
    """A socket on zeroconf's port, which others on this machine may use as well."""
    end = socket.socket(family, socket.SOCK_DGRAM)
    try:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            end.setsockopt(socket.SOL_SOCKET, option, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if family == socket.AF_INET:
            end.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
            end.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)
            end.bind((GROUP, PORT))  # the group's address: what is sent to us alone is not for us
        else:
            end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
            end.bind(("::", PORT))
    except OSError:
        end.close()
        raise
    end.setblocking(False)
    return end
