"""Which addresses the host names in nodes.yaml mean, looked up without making anybody wait."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable


class HostResolver:
    """Looks names up in the background, each once. Used in the loop's thread only."""

    def __init__(self) -> None:
        self._found: dict[str, frozenset[str]] = {}
        self._pending: dict[str, asyncio.Future[frozenset[str]]] = {}

    def look_up(self, names: Iterable[str]) -> bool:
        """Begin to look up what is not known yet.

        Returns:
            Whether all are known by now.
        """
        known = True
        for name in names:
            if name not in self._found and name not in self._pending:
                self._begin(name)
            known = known and name in self._found
        return known

    def addresses(self, name: str) -> frozenset[str]:
        """IPv4 and IPv6 addresses of a name, and the name itself; only that while not known."""
        return self._found.get(name, frozenset((name,)))

    def close(self) -> None:
        """Wait for no answer any more."""
        for pending in self._pending.values():
            pending.cancel()

    def _begin(self, name: str) -> None:
        if _is_address(name):
            self._found[name] = frozenset((name,))
            return
        pending = asyncio.get_running_loop().run_in_executor(None, _resolved, name)
        self._pending[name] = pending
        pending.add_done_callback(lambda done: self._know(name, done))

    def _know(self, name: str, done: asyncio.Future[frozenset[str]]) -> None:
        del self._pending[name]
        if not done.cancelled():
            self._found[name] = done.result()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _resolved(name: str) -> frozenset[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # ssh may know it, from its own configuration
        return frozenset((name,))
    return frozenset((name, *(str(entry[4][0]) for entry in found)))
