"""What NCCL says of itself in a worker's output where `NCCL_DEBUG=INFO` asks for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

MARK = "NCCL "
"""Is in each of its lines."""

_SAID = re.compile(r"NCCL (?P<level>INFO|WARN) (?P<text>.*)")
_VERSION = re.compile(r"NCCL version (?P<version>[^\s)]+)")
_RING = re.compile(r"Channel (?P<channel>\d+)/\d+ ?:(?P<ranks>(?:\s+\d+)+)\s*$")
_LINK = re.compile(
    r"Channel (?P<channel>\d+)(?:/\d+)? ?: (?P<source>\d+)\[[^\]]*\] -> (?P<target>\d+)\[[^\]]*\]"
    r"(?: \[(?P<way>send|receive)\])? via (?P<via>\S+)"
)
_NETWORK = re.compile(r"Using network (?P<network>.+)")
_INTERFACES = re.compile(r"NET/(?P<network>\w+)\s*: Using (?P<interfaces>.+)")
_DEVICE_NUMBER = re.compile(r"(?<=^NET/)(?P<network>\w+)/\d+")


@dataclass(kw_only=True)
class NcclFacts:
    """Of the newest communicator that a worker tells of.

    Attributes:
        version: Of NCCL; empty: not told.
        network: That it uses between machines; empty: not told.
        interfaces: Of the network, in NCCL's words; empty: not told.
        rings: Channel to the ranks in the order of its ring; one worker of them tells.
        transports: Such as `P2P/IPC`, `SHM/direct/direct` or `NET/Socket` to the number of this
            worker's connections that take it.
        warning: The newest; empty: there was none.
    """

    version: str = ""
    network: str = ""
    interfaces: str = ""
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    transports: Counter[str] = field(default_factory=Counter)
    warning: str = ""


class _Communicator:
    """The newest one, line by line."""

    def __init__(self) -> None:
        self.facts = NcclFacts()
        self._links: dict[tuple[str, ...], str] = {}

    def informed(self, text: str) -> None:
        """What an INFO line says."""
        facts = self.facts
        if found := _VERSION.match(text):
            facts.version = found["version"]
        elif found := _RING.match(text):
            if not int(found["channel"]):  # of a new communicator
                facts.rings.clear()
                self._links.clear()
            facts.rings[int(found["channel"])] = tuple(map(int, found["ranks"].split()))
        elif found := _LINK.match(text):
            self._links[found.group("channel", "source", "target")] = found["via"]
        elif found := _NETWORK.match(text):
            self._links.clear()
            facts.network = found["network"]
        elif found := _INTERFACES.match(text):
            facts.interfaces = found["interfaces"]

    def end(self) -> NcclFacts:
        """With its connections counted."""
        for via in self._links.values():
            self.facts.transports[_DEVICE_NUMBER.sub(r"\g<network>", via)] += 1
        return self.facts


def read_nccl(lines: Iterable[str]) -> NcclFacts | None:
    """Read a worker's output; None: NCCL says nothing there."""
    communicator = _Communicator()
    is_told = False
    for line in lines:
        if said := _SAID.search(line):
            is_told = True
            if said["level"] == "WARN":
                communicator.facts.warning = said["text"].strip()
            else:
                communicator.informed(said["text"].strip())
    return communicator.end() if is_told else None


def nccl_in_words(worker: str, facts: NcclFacts) -> Iterable[str]:
    """Lines for people: one about the worker, and one for the rings that it tells of."""
    parts = [f"NCCL {facts.version}".rstrip()]
    if facts.network:
        parts.append(f"network {facts.network}")
    if facts.interfaces:
        parts.append(facts.interfaces)
    if facts.transports:
        found = sorted(facts.transports.items(), key=lambda item: (-item[1], item[0]))
        parts.append("connections by " + ", ".join(f"{via} x {count}" for via, count in found))
    yield f"{worker}: {'; '.join(parts)}"
    orders: dict[tuple[int, ...], list[int]] = {}
    for channel, ranks in sorted(facts.rings.items()):
        orders.setdefault(ranks, []).append(channel)
    for ranks, channels in orders.items():
        ring = " ".join(map(str, ranks))
        number = f"{len(channels)} channel{'s' if len(channels) > 1 else ''}"
        yield f"{worker}: ring of ranks {ring} in {number}"
    if facts.warning:
        yield f"{worker}: NCCL warns: {facts.warning}"
