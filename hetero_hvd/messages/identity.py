"""Who a worker is and where, and what every record on a channel has in common."""

from __future__ import annotations

import hashlib
import re

import msgspec

from hetero_hvd.errors import UserError

NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
"""What a node may be called: a DNS-like label, 1 to 64 characters, safe in paths and host names."""


_SLOT = re.compile(r"[0-9]{1,9}")


def shortened(name: str, max_length: int) -> str:
    """A node's name, or where it is too long its beginning and what follows from all of it."""
    if len(name) <= max_length:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: max_length - len(digest) - 1].rstrip('.-')}-{digest}"


class WorkerId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A worker's identity. Ranks change at every reset; this does not.

    Attributes:
        node: Name of the node, as in nodes.yaml.
        slot: Process place on that node, 0-based.
    """

    node: str
    slot: int

    def __str__(self) -> str:
        return f"{self.node}:{self.slot}"

    def is_meant_by(self, target: str) -> bool:
        """Whether this worker is one of `NODE`, or is `NODE:SLOT`."""
        return target in (self.node, str(self))

    @classmethod
    def parse(cls, text: str) -> WorkerId:
        """Read what `str` wrote.

        Raises:
            UserError: The text is not `node:slot` with a valid node name and a slot >= 0.
        """
        node, _, slot = text.rpartition(":")
        if NODE_NAME.fullmatch(node) is None or _SLOT.fullmatch(slot) is None:
            raise UserError(f"worker {text!r}: must be NODE:SLOT, for example alpha:0")
        return cls(node, int(slot))


class RunIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Which run this is, for the workers of one that no driver leads.

    Attributes:
        run_id: Of this run and no other; see `RunStarted`.
        folder: Where the first rank 0 records it, as it names it.
        node: Name of that one's node.
        name: What that one's user calls it; empty if not at all.
        tags: What that one's user has tried, each as NAME=VALUE.
    """

    run_id: str = ""
    folder: str = ""
    node: str = ""
    name: str = ""
    tags: tuple[str, ...] = ()


class GlooAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker's Gloo will listen, and a port there that can be tried before it does.

    Attributes:
        address: IPv4 address that Gloo takes: the first one of its network interface.
        port: Of a listener that says the greeting to whoever connects, and nothing else.
        greeting: What tells that it is this worker who answers.
        ports: The first and the last of those that the worker's kernel gives to Gloo.
    """

    address: str
    port: int
    greeting: str
    ports: tuple[int, int]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of everything that is sent on a channel."""
