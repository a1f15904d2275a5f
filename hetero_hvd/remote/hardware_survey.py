"""What all nodes of a file are made of, and who uses their GPUs, asked at the same time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetero_hvd.config import NodeConfig
from hetero_hvd.config.launchers import SSH
from hetero_hvd.driver.workers.launchers.ssh import interpreters
from hetero_hvd.errors import NodeError, UserError
from hetero_hvd.messages import NodeSampled
from hetero_hvd.probes.sampling.local_samples import read_sample
from hetero_hvd.remote.node_program import NodeProgram

ANSWER_SECONDS = 5.0
"""For an answer on its way, after the node's own time is over."""


@dataclass(frozen=True, kw_only=True)
class NodeHardware:
    """One node.

    Attributes:
        node: Its name.
        inventory: As of `hetero-hvd nodes hardware --json` there; empty where it cannot be asked.
        sample: What it does now.
        failure: Why there is no more; empty if there is.
        remedy: What to do then.
    """

    node: str
    inventory: dict[str, Any] = field(default_factory=dict)
    sample: NodeSampled = field(default_factory=NodeSampled)
    failure: str = ""
    remedy: str = ""


def survey_nodes(nodes: Sequence[NodeConfig], *, timeout_seconds: float) -> list[NodeHardware]:
    """Ask all of them; one that does not answer costs its time once.

    Args:
        nodes: This machine, or reached by ssh, see `can_be_asked`.
        timeout_seconds: For each answer.
    """

    def ask(node: NodeConfig) -> NodeHardware:
        try:
            return _ask(node, timeout_seconds)
        except NodeError as error:
            return NodeHardware(node=node.name, failure=error.what, remedy=error.remedy)
        except UserError as error:
            remedy = "correct that in nodes.yaml"
            return NodeHardware(node=node.name, failure=str(error), remedy=remedy)

    with ThreadPoolExecutor(max(len(nodes), 1)) as pool:
        return list(pool.map(ask, nodes))


def can_be_asked(node: NodeConfig) -> bool:
    """Whether there is a way to it without an agent."""
    return node.is_local or node.kind == SSH


def _ask(node: NodeConfig, timeout_seconds: float) -> NodeHardware:
    own = (node.python or interpreters(node)[-1],) if node.is_local else interpreters(node)
    order = {
        "directory": node.directory or str(Path.cwd()),
        "environment": node.env,
        "limit_seconds": timeout_seconds,
    }
    with NodeProgram(node, "hardware_program", interpreters=own, fits="import json") as program:
        seen = program.ask("look", order, seconds=timeout_seconds + ANSWER_SECONDS)
    sample = read_sample(json.dumps(seen["sample"]).encode())
    if not isinstance(sample, NodeSampled):
        raise NodeError("its hetero_hvd is of another version", f"hetero-hvd install {node.name}")
    return NodeHardware(node=node.name, inventory=seen["inventory"], sample=sample)
