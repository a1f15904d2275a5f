"""Which nodes are heard of: one that is silent for too long is unhealthy, which is said once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

UNHEALTHY_SECONDS = 30.0


class HealthChange(NamedTuple):
    """A node is heard of no more, or again.

    Attributes:
        node: Its name.
        is_healthy: From now on.
        silent_seconds: For so long nothing was heard.
    """

    node: str
    is_healthy: bool
    silent_seconds: float


class FleetHealth:
    """Follows who was heard when; times are monotonic.

    Args:
        nodes: Those that are known already.
        now_seconds: When nothing is known of them yet.
        silent_seconds: Those of which it was said already that they are unhealthy, to how long they
            have been silent.
    """

    def __init__(
        self, nodes: set[str], now_seconds: float, silent_seconds: Mapping[str, float]
    ) -> None:
        silent = {node: now_seconds - seconds for node, seconds in silent_seconds.items()}
        self._heard = dict.fromkeys(nodes, now_seconds) | silent
        self._unhealthy = set(silent)

    def heard(self, node: str, now_seconds: float) -> HealthChange | None:
        """A node was heard of; says so where it was unhealthy."""
        silent_seconds = now_seconds - self._heard.get(node, now_seconds)
        self._heard[node] = now_seconds
        if node not in self._unhealthy:
            return None
        self._unhealthy.discard(node)
        return HealthChange(node, is_healthy=True, silent_seconds=silent_seconds)

    def left(self, node: str, now_seconds: float) -> HealthChange | None:
        """A node has said good-bye; says so where it was heard until now."""
        if not self.is_healthy(node):
            return None
        self._unhealthy.add(node)
        silent_seconds = now_seconds - self._heard[node]
        return HealthChange(node, is_healthy=False, silent_seconds=silent_seconds)

    def silent(self, now_seconds: float) -> list[HealthChange]:
        """Those that have become unhealthy since the last call."""
        found = [
            HealthChange(node, is_healthy=False, silent_seconds=now_seconds - at_seconds)
            for node, at_seconds in sorted(self._heard.items())
            if node not in self._unhealthy and now_seconds - at_seconds > UNHEALTHY_SECONDS
        ]
        self._unhealthy.update(change.node for change in found)
        return found

    def is_silent(self, node: str, now_seconds: float) -> bool:
        """Whether it was not heard for long: its agent is not just being started anew."""
        at_seconds = self._heard.get(node)
        return at_seconds is None or now_seconds - at_seconds > UNHEALTHY_SECONDS

    def is_healthy(self, node: str) -> bool:
        """Whether it was heard of lately."""
        return node in self._heard and node not in self._unhealthy
