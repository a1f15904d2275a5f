"""Which node was there from when to when, and at which price: what has to be paid for.

A node is paid for from the start of its first worker to the exit of its last one: a rented machine
counts its time whether its workers are members yet or not, and two workers on one node pay once.
While the driver waits to start a worker again its node is kept, so that time is paid for, too. A
node that has left the job and comes back was somebody else's meanwhile: that time is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hetero_hvd.messages import (
    Event,
    NodesPriced,
    RunEnded,
    RunStarted,
    WorkerExited,
    WorkersJoined,
    WorkerStarted,
)


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A node in the job, at one price.

    Attributes:
        node: Its name.
        from_seconds: When it began, seconds since 1970.
        until_seconds: When it ended, or the last that was heard of the run.
        price_per_hour: In any currency; None: not known.
    """

    node: str
    from_seconds: float
    until_seconds: float
    price_per_hour: float | None

    def seconds_within(self, from_seconds: float, until_seconds: float) -> float:
        """How much of it lies between two times."""
        begin, end = max(self.from_seconds, from_seconds), min(self.until_seconds, until_seconds)
        return max(0.0, end - begin)


class _Presence:
    """The nodes of a run; a fold over its events."""

    def __init__(self, prices: Mapping[str, float]) -> None:
        self.stays: list[Stay] = []
        self.now_seconds = float("-inf")
        self._given = prices
        self._prices: dict[str, float | None] = {}
        self._running: dict[str, set[str]] = {}
        self._since: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._is_told_of_processes = False

    def observe(self, at_seconds: float, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event, RunStarted):  # of a driver that was killed no end is recorded
            self.end()
            self.now_seconds = at_seconds
            self._is_told_of_processes = False
        self.now_seconds = max(self.now_seconds, at_seconds)  # a clock may have been set back
        match event:
            case NodesPriced():
                self._priced(event)
            case WorkerStarted():
                self._is_told_of_processes = True
                self._came(event.worker.node, event.host, is_restart=event.num_restarts > 0)
            case WorkerExited():
                self._went(event.worker.node, event.host)
            case WorkersJoined() if not self._is_told_of_processes:  # there is no driver
                members = {worker.node for worker in event.workers}
                for node in self._running.keys() - members:
                    self._went(node, node)
                for node in sorted(members):
                    self._came(node, node, is_restart=False)
            case RunEnded():
                self.end()

    def end(self) -> None:
        """Nothing more was heard of this driver and its workers."""
        for node in list(self._running):
            self._close(node)
        self._running.clear()
        self._left.clear()

    def _came(self, node: str, host: str, *, is_restart: bool) -> None:
        if node not in self._running:
            began = self._left.pop(node, self.now_seconds)
            self._since[node] = began if is_restart else self.now_seconds
        self._running.setdefault(node, set()).add(host)

    def _went(self, node: str, host: str) -> None:
        running = self._running.get(node)
        if running is None:
            return
        running.discard(host)
        if not running:
            self._close(node)
            del self._running[node]
            self._left[node] = self.now_seconds

    def _close(self, node: str) -> None:
        price = self._given.get(node, self._prices.get(node))
        since, until = self._since[node], self.now_seconds
        before = next((stay for stay in reversed(self.stays) if stay.node == node), None)
        is_same = before and (before.until_seconds, before.price_per_hour) == (since, price)
        if before is not None and is_same:
            self.stays[self.stays.index(before)] = replace(before, until_seconds=until)
        else:
            self.stays.append(
                Stay(node=node, from_seconds=since, until_seconds=until, price_per_hour=price)
            )

    def _priced(self, event: NodesPriced) -> None:
        """From now on; a node that has gone from the file keeps its last price to its end."""
        prices = {**dict.fromkeys(event.unpriced), **event.per_hour}
        for node in self._running:
            if prices.get(node, self._prices.get(node)) != self._prices.get(node):
                self._close(node)
                self._since[node] = self.now_seconds
        self._prices |= prices


def stays_of(
    events: Iterable[tuple[float, Event]],
    *,
    heard_until_seconds: float = float("-inf"),
    prices: Mapping[str, float] | None = None,
) -> tuple[Stay, ...]:
    """All stays of all nodes, by their ends.

    Args:
        events: Of the record, in the order in which they happened, with their times in seconds
            since 1970.
        heard_until_seconds: When something else was last heard of the newest driver.
        prices: Node to its price per hour, in place of the recorded ones.
    """
    presence = _Presence(prices or {})
    for at_seconds, event in events:
        presence.observe(at_seconds, event)
    presence.now_seconds = max(presence.now_seconds, heard_until_seconds)
    presence.end()
    return tuple(stay for stay in presence.stays if stay.until_seconds > stay.from_seconds)
