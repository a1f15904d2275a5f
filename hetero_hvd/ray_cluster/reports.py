"""What the process that talks with Ray is told, and what it tells: one JSON record a line."""

from __future__ import annotations

import json

import msgspec

from hetero_hvd.config.launchers import AGENT


class PlacerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the input.

    Attributes:
        address: Of the cluster, as `ray.init` takes it.
        resources: What to take of each node.
        key: The cluster key of the agents, as hexadecimal digits.
    """

    address: str
    resources: dict[str, float]
    key: str


class AgentNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose agent listens.

    Attributes:
        name: Of the node.
        address: Where.
        port: Where.
        slots: Worker processes.
        directory: In which its workers are to run; empty: as the driver does.
    """

    name: str
    address: str
    port: int
    slots: int
    directory: str = ""


class PlacerReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there is to tell; each line has one of these.

    Attributes:
        connected: Ray answers; what it has told of the cluster is looked at from now on.
        nodes: All that are there.
        is_settled: With `nodes`: no other one is about to come.
        said: For people.
        failed: Why there is nothing to wait for; the last line.
        is_lasting: With `failed`: what was asked for is wrong, and another try is of no use.
    """

    connected: bool = False
    nodes: tuple[AgentNode, ...] | None = None
    is_settled: bool = False
    said: str = ""
    failed: str = ""
    is_lasting: bool = False


def nodes_as_yaml(nodes: tuple[AgentNode, ...], key_file: str) -> bytes:
    """The nodes as nodes.yaml would list them.

    Args:
        nodes: All that there are.
        key_file: With the cluster key of their agents.
    """
    entries = []
    for node in nodes:
        entry = {"name": node.name, "address": node.address, "port": node.port}
        entry |= {"slots": node.slots, "launcher": AGENT.name, "identity_file": key_file}
        if node.directory:
            entry["directory"] = node.directory
        entries.append(entry)
    return json.dumps({"nodes": entries}).encode()
