"""Workers as threads: the collective operations with faults at named points, and nothing else."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from types import SimpleNamespace

import torch

from hetero_hvd.core.cluster import BalanceConfig
from hetero_hvd.messages import WorkerId
from hetero_hvd.worker.collective import Interrupted
from hetero_hvd.worker.operations import OperationLog
from hetero_hvd.worker.planner import LocalPlanner

PATIENCE_SECONDS = 10


class Hub:
    """Where the workers of one job meet.

    Args:
        size: Workers.
        faults: (rank, operation, which time, before or after it is complete): what breaks.
    """

    def __init__(self, size, faults=()):
        self.size = size
        self.faults = set(faults)
        self.fired = set()
        self.posts = defaultdict(dict)
        self.broken = set()
        self.left = set()
        self.changed = threading.Condition()


class ThreadCollective:
    """One worker's end; a broken rendezvous is broken for all, but only from their next wait on."""

    def __init__(self, hub, rank):
        self.hub, self.name = hub, rank
        self.operations = OperationLog()
        self.members = range(hub.size)
        self.generation, self.counts, self.total = 0, Counter(), Counter()

    @property
    def rank(self):
        """Place among the members."""
        return self.members.index(self.name)

    @property
    def size(self):
        """Members."""
        return len(self.members)

    def restart(self):
        """Whoever has not left comes to the next rendezvous sooner or later."""
        self.generation += 1
        self.members = [name for name in range(self.hub.size) if name not in self.hub.left]
        self.counts.clear()

    def _post(self, kind, tensor, name):
        self.counts[name] += 1
        self.total[name] += 1
        key = (self.generation, name, self.counts[name])
        with self.hub.changed:
            self.hub.posts[key][self.name] = tensor.clone()
            self.hub.changed.notify_all()
        return kind, tensor, key, (self.name, name, self.total[name])

    def sum_async(self, tensor, name):
        """Post a tensor."""
        return self._post("sum", tensor, name)

    def gather_rows_async(self, rows, name):
        """Post rows."""
        return self._post("rows", rows, name)

    def wait(self, handle):
        """Complete, broken, or made to break."""
        kind, tensor, key, place = handle
        posts = self.hub.posts[key]
        for when in ("before", "after"):
            with self.hub.changed:
                if (*place, when) in self.hub.faults - self.hub.fired:
                    self.hub.fired.add((*place, when))
                    self.hub.broken.add(self.generation)
                    self.hub.changed.notify_all()
                    raise Interrupted("as the test wants it")
                if when == "before":
                    self._await(posts)
        in_order = [posts[name] for name in self.members]
        return tensor.copy_(sum(in_order)) if kind == "sum" else torch.cat(in_order)

    def is_done(self, handle):
        """Whether all have posted, or will not."""
        with self.hub.changed:
            return len(self.hub.posts[handle[2]]) == self.size or bool(self.hub.broken)

    def _await(self, posts):
        done = self.hub.changed.wait_for(
            lambda: (
                len(posts) == self.size
                or self.generation in self.hub.broken
                or self.hub.left.intersection(self.members)
            ),
            PATIENCE_SECONDS,
        )
        assert done, "a worker waits for ever"
        if len(posts) < self.size:
            raise Interrupted("another worker is gone")

    def broadcast(self, tensor, root, name):
        """By way of a sum."""
        source = tensor if self.rank == root else torch.zeros_like(tensor)
        tensor.copy_(self.wait(self.sum_async(source.clone(), name)))


def seat(hub, rank):
    """What a worker needs to know about its job."""
    seat = SimpleNamespace(
        place=SimpleNamespace(worker=WorkerId("node", rank), capacity=-1, settings={}),
        collective=ThreadCollective(hub, rank),
        planner=LocalPlanner(BalanceConfig(balance=False)),
        rendezvous_id=0,
        client=None,
        tell=lambda _: None,
        reset_requested=False,
        stop_requested=False,
        leave_reason=None,
        reset_done=lambda: None,
    )
    seat.agreed = lambda rendezvous_id: setattr(seat, "rendezvous_id", rendezvous_id)
    return seat


def run_together(hub, work):
    """Run `work(seat)` for each worker; what they returned, in rank order."""
    results, errors = {}, []

    def one(rank):
        try:
            results[rank] = work(seat(hub, rank))
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
        with hub.changed:
            hub.left.add(rank)
            hub.changed.notify_all()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(hub.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_SECONDS)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(hub.size)]
