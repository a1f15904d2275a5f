"""Whether a worker that failed is started again, when, and why not: a matter of its record.

Restarts are paid from a budget that fills up again: so many within a window. A slot whose budget is
spent is quarantined; a node on which several slots fail is, as a whole. The delay doubles from
failure to failure, so that a slot that flaps disturbs the others less and less; a worker that lived
long enough starts with a clean record.
"""

from __future__ import annotations

from collections import defaultdict

from hetero_hvd.core.backoff import doubled
from hetero_hvd.messages import WorkerId

WINDOW_SECONDS = 600.0
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 60.0
PROVEN_SECONDS = 120.0
"""A worker that lived so long has failed for another reason than the one before."""

NODE_FACTOR = 2
"""A node with several slots may use so many times the budget of one slot."""


class Restarts:
    """The record of all slots. Pure: the time is an argument.

    Attributes:
        budget: Restarts of one slot within the window.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._failed_at: dict[WorkerId, list[float]] = defaultdict(list)
        self._in_a_row: dict[WorkerId, int] = defaultdict(int)

    def failed(self, worker: WorkerId, *, now_seconds: float, lived_seconds: float) -> float | str:
        """A worker has failed.

        Args:
            worker: Which.
            now_seconds: Now, on any clock that does not jump.
            lived_seconds: Since its start.

        Returns:
            Seconds until its restart, or the reason for its quarantine.
        """
        if lived_seconds >= PROVEN_SECONDS:
            self._in_a_row[worker] = 0
        since = now_seconds - WINDOW_SECONDS
        recent = [at for at in self._failed_at[worker] if at > since] + [now_seconds]
        self._failed_at[worker] = recent
        if len(recent) > self.budget:
            return f"{len(recent)} failures within {WINDOW_SECONDS:.0f} s"
        on_node = {
            other.slot: [at for at in failed_at if at > since]
            for other, failed_at in self._failed_at.items()
            if other.node == worker.node
        }
        num_failures = sum(map(len, on_node.values()))
        num_slots = len([slot for slot, failed_at in on_node.items() if failed_at])
        if num_slots > 1 and num_failures > NODE_FACTOR * self.budget:
            return f"{num_failures} failures of {num_slots} slots of node {worker.node}"
        delay_seconds = doubled(FIRST_DELAY_SECONDS, self._in_a_row[worker], MAX_DELAY_SECONDS)
        self._in_a_row[worker] += 1
        return delay_seconds

    def reset(self, worker: WorkerId) -> None:
        """Start with a clean record: the node's entry was changed."""
        self._failed_at.pop(worker, None)
        self._in_a_row.pop(worker, None)
