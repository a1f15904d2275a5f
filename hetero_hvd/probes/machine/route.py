"""Through which network interface a machine's training traffic will go, and why."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_hvd.errors import UserError
from hetero_hvd.probes.machine.hardware import Interface

_ELSEWHERE = ("224.0.0.251", 5353)
"""Where zeroconf talks (RFC 6762): the way to it is the way to the other nodes."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """The interface that Gloo will use on this machine, unless nodes.yaml names another.

    Attributes:
        interface: Its name; None where there is none.
        reason: Why this one.
    """

    interface: str | None
    reason: str


def route(interfaces: Sequence[Interface], towards: str | None = None) -> Route:
    """Ask the kernel; nothing is sent.

    A worker tells Gloo the interface through which it reached the driver (`nodes[].interface`
    overrides it), so the way to the driver decides.

    Args:
        interfaces: Of this machine.
        towards: Address of the driver's machine; None: any other machine.

    Raises:
        UserError: `towards` has no address.
    """
    try:
        target = (socket.gethostbyname(towards), 9) if towards else _ELSEWHERE
    except (OSError, UnicodeError) as error:
        raise UserError(f"--towards {towards}: no address ({error})") from error
    what = f"the driver at {towards}" if towards else "other machines"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
        except OSError as error:
            return Route(interface=None, reason=f"there is no route to {what}: {error.strerror}")
        address = str(probe.getsockname()[0])
    name = next((i.name for i in interfaces if address in i.addresses), None)
    return Route(interface=name, reason=f"the route to {what} leaves through it, from {address}")
