"""Which nodes of a Ray cluster get an agent, under which name, and what of each it takes. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_hvd.errors import UserError
from hetero_hvd.messages import NODE_NAME

GPU, CPU, MEMORY = "GPU", "CPU", "memory"
"""Ray's own names of what each node has; memory is in bytes. All others are the user's."""

MAX_AMOUNT = 1e15
NUM_ID_DIGITS = 6
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.-]+")
_PART = re.compile(r"(?P<name>[^\s=,]+)=(?P<amount>[0-9]+(\.[0-9]+)?)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """A node, as Ray lists it.

    Attributes:
        node_id: Ray's; a machine that comes back has another one.
        label: As people call it: the name that it was given, else its host's.
        address: At which the others reach it.
        resources: What it has in all, whoever uses it, by Ray's names.
    """

    node_id: str
    label: str
    address: str
    resources: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What an actor takes of its node.

    Attributes:
        resources: By Ray's names; Ray lends no more of them to others.
        slots: Worker processes.
        num_threads: Of each worker, for computing; None: as many as its libraries take.
    """

    resources: Mapping[str, float]
    slots: int
    num_threads: int | None = None

    def __str__(self) -> str:
        """As the option has it."""
        return ",".join(f"{name}={amount:g}" for name, amount in self.resources.items())


def read_resources(text: str) -> dict[str, float]:
    """What is to be taken of each node, from `GPU=2,CPU=8`.

    Returns:
        Amount by name; empty: what `placement` finds right for the node.

    Raises:
        UserError: It is no such list, or GPUs are to be shared in a way that Ray does not.
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        match = _PART.fullmatch(part.strip())
        if match is None or match["name"] in found or float(match["amount"]) > MAX_AMOUNT:
            raise UserError(
                f"--ray-resources: found {part!r}, must be NAME=AMOUNT, each name once, with "
                "commas between them: GPU=2,CPU=8; memory is in bytes"
            )
        found[match["name"]] = float(match["amount"])
    num_gpus = found.get(GPU, 0.0)
    if num_gpus > 1 and not num_gpus.is_integer():
        raise UserError(
            f"--ray-resources: found GPU={num_gpus:g}, must be a whole number, or less than 1 for "
            "a part of one GPU"
        )
    return found


def nodes_in(listed: list[dict[str, Any]]) -> list[ClusterNode]:
    """The nodes that live, of what `ray.nodes()` gives, in an order that does not change."""
    found = []
    for entry in listed:
        if entry["Alive"]:
            address, host = entry["NodeManagerAddress"], entry["NodeManagerHostname"]
            name = entry.get("NodeName") or address
            found.append(
                ClusterNode(
                    node_id=entry["NodeID"],
                    label=host if name == address else name,
                    address=address,
                    resources=entry["Resources"],
                )
            )
    return sorted(found, key=lambda node: (node.label, node.node_id))


def placement(node: ClusterNode, wanted: Mapping[str, float]) -> Placement | str:
    """What an agent takes of a node.

    Args:
        node: Of the cluster.
        wanted: As `read_resources` gives it. Empty: all its GPUs and a CPU for each; of a node
            without a GPU all its CPUs.

    Returns:
        That, or in words why it can have no agent.
    """
    if not _is_ipv4(node.address):
        return f"its address {node.address} is no IPv4 address, and Horovod knows nothing else"
    has = node.resources
    if wanted:
        resources = {name: amount for name, amount in wanted.items() if amount}
    elif num_gpus := int(has.get(GPU, 0.0)):
        resources = {GPU: float(num_gpus), CPU: float(min(num_gpus, int(has.get(CPU, 0.0))))}
    else:
        resources = {CPU: max(has.get(CPU, 0.0), 1.0)}
    for name, amount in resources.items():
        if has.get(name, 0.0) < amount:
            return f"it has {name}={has.get(name, 0.0):g}, and {amount:g} is needed"
    slots = max(int(resources.get(GPU, 0.0)), 1)
    num_cpus = wanted.get(CPU, 0.0)
    num_threads = max(int(num_cpus / slots), 1) if num_cpus else None
    return Placement(resources=resources, slots=slots, num_threads=num_threads)


def _is_ipv4(address: str) -> bool:
    try:
        ipaddress.IPv4Address(address)
    except ValueError:
        return False
    return True


def name_of(node: ClusterNode, taken: Container[str]) -> str:
    """What a node is called here: nodes.yaml allows less than Ray, and each name once.

    Args:
        node: Of the cluster.
        taken: Names of other nodes.
    """
    room = 64 - 1 - NUM_ID_DIGITS
    plain = _NOT_IN_A_NAME.sub("-", node.label).strip(".-")[:room].rstrip(".-")
    if plain and NODE_NAME.fullmatch(plain) and plain not in taken:
        return plain
    return f"{plain or 'node'}-{node.node_id[:NUM_ID_DIGITS]}"
