"""Gives each node of the cluster an agent, as nodes come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hetero_hvd.core.backoff import doubled
from hetero_hvd.ray_cluster.placement import ClusterNode, Placement, name_of, placement
from hetero_hvd.ray_cluster.reports import AgentNode, PlacerReport

WAIT_SECONDS = 10.0
"""For an actor to be started, before it is told that others have what it needs: 1 to 3 s."""

SETTLED_SECONDS = 30.0
"""For all the actors of a start; the training then begins without who is late."""

FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 5.0, 60.0
"""Before an agent that has ended is started again on its node; it doubles."""


class Agent(Protocol):
    """See `cluster.PlacedAgent`."""

    taken: Placement
    port: int
    directory: str
    why_ended: str

    def look(self) -> None:
        """Take note of what has become of it."""

    def close(self) -> None:
        """End it."""


class Cluster(Protocol):
    """See `cluster.RayCluster`."""

    has_working_dir: bool

    def nodes(self) -> list[ClusterNode]:
        """Those that live."""

    def place(self, node: ClusterNode, taken: Placement, key: str) -> Agent:
        """Have an agent on a node."""


@dataclass
class _Entry:
    node: ClusterNode
    name: str
    since_seconds: float
    agent: Agent | None = None
    why_none: str = ""
    is_told: bool = False
    num_ends: int = 0
    again_at_seconds: float = 0.0


class Placer:
    """Which agents there are. Used by one thread.

    Args:
        cluster: Where.
        wanted: What to take of each node, see `placement`.
        key: The cluster key, as hexadecimal digits.
        tell: Gets what there is to tell.
    """

    def __init__(
        self,
        cluster: Cluster,
        wanted: Mapping[str, float],
        key: str,
        tell: Callable[[PlacerReport], None],
    ) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._key = key
        self._tell = tell
        self._entries: dict[str, _Entry] = {}
        self._told: tuple[tuple[AgentNode, ...], bool] | None = None

    def look(self, now_seconds: float) -> None:
        """Follow the cluster; for about once a second.

        Args:
            now_seconds: Monotonic.
        """
        nodes = {node.node_id: node for node in self._cluster.nodes()}
        for node_id in self._entries.keys() - nodes.keys():
            gone = self._entries.pop(node_id)
            if gone.agent is not None:
                self._say(f"{gone.name} has left the Ray cluster")
        for node_id, node in nodes.items():
            if node_id not in self._entries:
                name = name_of(node, {entry.name for entry in self._entries.values()})
                self._entries[node_id] = _Entry(node, name, now_seconds)
        for entry in self._entries.values():
            self._look_at(entry, now_seconds)
        self._tell_nodes(now_seconds)

    def _look_at(self, entry: _Entry, now_seconds: float) -> None:
        if entry.agent is None:
            if now_seconds >= entry.again_at_seconds:
                self._place(entry, now_seconds)
            return
        entry.agent.look()
        if why := entry.agent.why_ended:
            entry.agent = None
            delay_seconds = doubled(FIRST_DELAY_SECONDS, entry.num_ends, MAX_DELAY_SECONDS)
            entry.num_ends += 1
            entry.again_at_seconds = now_seconds + delay_seconds
            self._say(f"{entry.name}: {why}; tried again in {delay_seconds:g} s")
            return
        is_late = not entry.agent.port and now_seconds - entry.since_seconds >= WAIT_SECONDS
        if is_late and not entry.is_told:
            entry.is_told = True
            self._say(
                f"{entry.name}: Ray has not started the agent yet, which needs "
                f"{entry.agent.taken}: others of the cluster may have that; it joins when they "
                "are done, or say with --ray-resources what to take"
            )

    def _place(self, entry: _Entry, now_seconds: float) -> None:
        found = placement(entry.node, self._wanted)
        if isinstance(found, str):
            if found != entry.why_none:
                entry.why_none = found
                self._say(f"{entry.name} is left out: {found}")
            return
        entry.agent = self._cluster.place(entry.node, found, self._key)
        entry.since_seconds = now_seconds
        entry.is_told = False

    def _tell_nodes(self, now_seconds: float) -> None:
        there, is_settled = [], True
        for entry in self._entries.values():
            if entry.agent is None:
                continue
            if not entry.agent.port:
                is_settled &= now_seconds - entry.since_seconds >= SETTLED_SECONDS
                continue
            there.append(
                AgentNode(
                    name=entry.name,
                    address=entry.node.address,
                    port=entry.agent.port,
                    slots=entry.agent.taken.slots,
                    directory=entry.agent.directory if self._cluster.has_working_dir else "",
                )
            )
        found = tuple(sorted(there, key=lambda node: node.name)), is_settled
        if found != self._told:
            self._told = found
            self._tell(PlacerReport(nodes=found[0], is_settled=is_settled))

    def _say(self, words: str) -> None:
        self._tell(PlacerReport(said=words))
