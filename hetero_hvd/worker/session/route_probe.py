"""Whether this worker and the others reach each other, tried before Gloo needs it.

Gloo connects each worker with each other one, at ports that the kernel chooses. Where a firewall or
address translation is in the way, it waits for its timeout and names nobody. So the driver has one
worker of each pair connect to a port of the same range at the other one. That one says a word which
it has told the driver, so it is known that the right machine has answered.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from hetero_hvd.messages import GlooAddress, RouteAsked, RouteTold

logger = logging.getLogger(__name__)

TRY_SECONDS = 3.0
"""For a connection, in which the kernel asks twice, and for its greeting."""

PAUSE_SECONDS = 0.002
"""Between two connections: strangers who come all the time take no processor from the training."""

BACKLOG = 256
PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
ALL_PORTS = (1024, 65535)


class RouteProbe:
    """One worker's part in it: a listener, and tries on request."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._gloo: GlooAddress | None = None

    def listen(self, interface: str) -> GlooAddress | None:
        """Be reached from now on, where Gloo will be.

        Args:
            interface: Of Gloo; the first one that was given counts.

        Returns:
            Where the others may try; None: the interface has no IPv4 address, or none is free.
        """
        address = address_of(interface)
        if self._gloo is not None or address is None:
            return self._gloo
        try:
            self._server = socket.create_server((address, 0), backlog=BACKLOG)
        except OSError as error:
            logger.warning("routes from others cannot be tried: %s: %s", address, error)
            return None
        self._gloo = GlooAddress(
            address=address,
            port=self._server.getsockname()[1],
            greeting=secrets.token_hex(8),
            ports=ports_of_the_kernel(),
        )
        words = self._gloo.greeting.encode()
        thread = threading.Thread(target=_greet, args=(self._server, words), name="route-listener")
        thread.daemon = True
        thread.start()
        return self._gloo

    def answer(self, question: RouteAsked, tell: Callable[[RouteTold], object]) -> None:
        """Try to reach another worker, in a thread of its own.

        Args:
            question: Whom.
            tell: Called there with the answer.
        """

        def attempt() -> None:
            tell(RouteTold(host=question.host, fault=try_to_reach(question.gloo)))

        threading.Thread(target=attempt, name="route-attempt", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # ends the wait in the other thread
            self._server.close()


def address_of(interface: str) -> str | None:
    """The address that Gloo takes of a network interface; None: it has none of IPv4."""
    found = psutil.net_if_addrs().get(interface, ())
    return next((entry.address for entry in found if entry.family == socket.AF_INET), None)


def ports_of_the_kernel(file: Path = PORTS) -> tuple[int, int]:
    """The first and the last port that the kernel gives to who does not ask for a certain one."""
    try:
        first, last = map(int, file.read_text().split())
    except (OSError, ValueError):
        return ALL_PORTS
    return first, last


def try_to_reach(gloo: GlooAddress) -> str:
    """Why another worker cannot be reached, in words; empty if it can.

    One that is connected and says nothing counts as reached: its script may hold its interpreter.
    """
    expected = gloo.greeting.encode()
    try:
        with socket.create_connection((gloo.address, gloo.port), timeout=TRY_SECONDS) as end:
            heard = b""
            while len(heard) < len(expected):
                with suppress(TimeoutError):
                    piece = end.recv(len(expected) - len(heard))
                    if not piece or not expected.startswith(heard := heard + piece):
                        return "something else answers there, so another machine has this address"
                    continue
                return ""
    except TimeoutError:
        return f"no answer for {TRY_SECONDS:g} s, so packets are dropped on the way"
    except ConnectionRefusedError:
        return "refused, by a firewall or by another machine that has this address"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _greet(server: socket.socket, words: bytes) -> None:
    """Say the words to whoever comes; nothing is read, so nobody can make us wait."""
    while True:
        try:
            end, _ = server.accept()
        except OSError:  # closed, or no descriptor is left
            if server.fileno() < 0:
                return
            time.sleep(1.0)
            continue
        with suppress(OSError), end:
            end.sendall(words)
        time.sleep(PAUSE_SECONDS)
