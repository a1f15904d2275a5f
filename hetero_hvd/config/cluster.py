"""All settings together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hetero_hvd.config.job import JobConfig
from hetero_hvd.config.node import NodeConfig
from hetero_hvd.config.setting import check, setting
from hetero_hvd.config.value_types import ListOf, Section

LIST = "a list of at least one node, each with its own name"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Everything that nodes.yaml, the environment and the flags say together.

    Attributes:
        path: The file.
        sources: Setting, such as `nodes[0].slots`, to where its value came from: `FILE:LINE`,
            `environment`, `flag` or `default`.
    """

    job: JobConfig = setting(Section(JobConfig), "settings of the job", default_factory=JobConfig)
    nodes: tuple[NodeConfig, ...] = setting(
        ListOf(
            Section(NodeConfig),
            LIST,
            unique="name",
        ),
        "the machines; with job.discover the list may be empty",
    )
    path: Path = Path("nodes.yaml")
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Check."""
        check(self, self._relations())

    def _relations(self) -> Iterator[tuple[str, str]]:
        if not self.nodes and not self.job.discover:
            yield "nodes", f"found an empty list, must be {LIST}"
            return
        for index, node in enumerate(self.nodes):
            has_key = node.identity_file or self.job.cluster_key_file
            if node.kind.uses_cluster_key and not has_key:
                yield (
                    f"nodes[{index}].identity_file",
                    "found none, must be the cluster key of the agent, or set job.cluster_key_file",
                )
        slots = [node.declared_slots for node in self.nodes]
        total = sum(slot or 0 for slot in slots)
        found = self.job.min_np
        if None not in slots and found > total and not self.job.discover:
            yield "job.min_np", f"found {found}, must be at most {total}, the slots of all nodes"
