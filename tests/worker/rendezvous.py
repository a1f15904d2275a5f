"""Workers as threads on a Horovod as unkind as the real one, with faults where they are wanted."""

from __future__ import annotations

import gc
import itertools
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import torch

from hetero_hvd.core.balance.balancer_state import BalanceConfig
from hetero_hvd.messages import BatchPlan, WorkerId
from hetero_hvd.messages.identity import RunIdentity
from hetero_hvd.messages.launch import WorkerIdentity, WorkerLaunch
from hetero_hvd.worker.comm.horovod import HorovodCollective
from hetero_hvd.worker.recovery.reports import Report
from hetero_hvd.worker.session.launch_settings import LaunchSettings
from hetero_hvd.worker.session.worker_context import WorkerContext
from tests.kit.local_planner import LocalPlanner

for kind in (Report, BatchPlan):  # msgspec learns a type at its first use: no two threads at once
    msgspec.msgpack.Decoder(kind)

PATIENCE_SECONDS = 50
"""Nobody waits for so long, however busy the machine is."""


class Killed(BaseException):
    """The end of a worker, in the middle of its script."""


class Hub:
    """Where the workers of one job meet.

    Args:
        size: Workers.
        faults: (worker, operation, which time, when): what goes wrong. `before` or `after`: its
            wait fails before or after the operation is complete. `unsent` or `sent`: it dies, and
            does not or does contribute to the operation; `awaited`: not, once all others wait.
            `init` is its way into a rendezvous.
        late: Workers that are not there before `admit`.
    """

    def __init__(self, size, faults=(), late=()):
        self.size = size
        self.late = set(late)
        self.faults = set(faults)
        self.fired = set()
        self.posts = defaultdict(dict)
        self.splits = defaultdict(dict)
        self.broken = set()
        self.left = set(late)
        self.waiting = set()
        self.memberships = []
        self.entering = set()
        self.changed = threading.Condition()

    def admit(self, name):
        """One who is late comes."""
        with self.changed:
            self.late.discard(name)
            self.left.discard(name)
            self.changed.notify_all()

    def await_turn(self, name):
        """Wait until it may come."""
        with self.changed:
            assert self.changed.wait_for(lambda: name not in self.late, PATIENCE_SECONDS)

    def enter(self, name):
        """Wait until all who have not left are here; gives the number of the rendezvous."""
        with self.changed:
            number = len(self.memberships)
            self.entering.add(name)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self._is_formed(number), PATIENCE_SECONDS)
            return number

    def _is_formed(self, number):
        if len(self.memberships) == number and len(self.entering | self.left) == self.size:
            self.memberships.append(sorted(self.entering))
            self.entering = set()
            self.changed.notify_all()
        return len(self.memberships) > number

    def is_due(self, place, when):
        """Whether this fault is scheduled here; it fires once."""
        if (*place, when) not in self.faults - self.fired:
            return False
        self.fired.add((*place, when))
        self.changed.notify_all()
        return True


class ThreadHorovod:
    """One worker's `horovod.torch`, with the ways of 0.28.1 (`mpi_ops.py`, `handle_manager.cc`).

    A failed wait voids its handle: a look at it raises ValueError, and a second wait returns None.
    Each rendezvous counts its handles from 1. A broken sum leaves garbage. Whoever has noticed a
    fault cannot submit anything; the others notice it at their next incomplete wait.
    """

    HorovodInternalError = type("HorovodInternalError", (RuntimeError,), {})
    Sum = "sum"

    def __init__(self, hub, name):
        self.hub = hub
        self.name = name
        self.total = Counter()

    def init(self):
        """Meet the others; a rendezvous may break while it forms."""
        self.total["init"] += 1
        with self.hub.changed:
            if self.hub.is_due((self.name, "init", self.total["init"]), "before"):
                raise ValueError("the rendezvous is void")
        self.number = self.hub.enter(self.name)
        self.members = self.hub.memberships[self.number]
        self.counts = Counter()
        self.handles = itertools.count(1)
        self.pending = {}
        self.has_noticed = False

    def shutdown(self):
        """Its connections end, so whoever waits for it notices."""
        self.pending.clear()
        with self.hub.changed:
            self.hub.broken.add(self.number)
            self.hub.changed.notify_all()

    def rank(self):
        """Place among the members."""
        return self.members.index(self.name)

    def size(self):
        """Members."""
        return len(self.members)

    def nccl_built(self):
        """It is not."""
        return 0

    def allreduce_async_(self, tensor, name, op):
        """Post a tensor."""
        assert op == self.Sum
        return self._post(tensor, name, lambda posts: tensor.copy_(sum(posts)))

    def grouped_allreduce_async_(self, tensors, name, op):
        """Post several; their sums are not looked at."""
        return self.allreduce_async_(torch.cat(tensors), name, op)

    def allgather_async(self, rows, name):
        """Post rows."""
        return self._post(rows, name, torch.cat)

    def alltoall_async(self, tensor, splits, name):
        """Post the parts that are for each; gives those of all, and their sizes."""
        self.hub.splits[self.number, name][self.name] = splits.tolist()

        def finish(posts):
            sizes = [self.hub.splits[self.number, name][member] for member in self.members]
            mine = [post.split(each)[self.rank()] for post, each in zip(posts, sizes, strict=True)]
            return torch.cat(mine), torch.tensor([len(each) for each in mine], dtype=torch.int32)

        return self._post(tensor.clone(), name, finish)  # what is sent stays, whatever breaks

    def broadcast_async_(self, tensor, root, name):
        """Post a tensor that only the root's counts of."""
        return self._post(tensor, name, lambda posts: tensor.copy_(posts[root]))

    def poll(self, handle):
        """Whether all have posted, or will not."""
        if handle not in self.pending:
            raise ValueError(f"Handle {handle} was not created or has been cleared.")
        with self.hub.changed:
            return self._is_over(self.hub.posts[self.pending[handle][2]])

    def synchronize(self, handle):
        """Complete, broken, or made to break."""
        if handle not in self.pending:
            return None
        tensor, finish, key, place = self.pending.pop(handle)
        posts = self.hub.posts[key]
        with self.hub.changed:
            if self.hub.is_due(place, "before"):
                self._break(tensor)
            self.hub.waiting.add(self.name)
            self.hub.changed.notify_all()
            is_over = self.hub.changed.wait_for(lambda: self._is_over(posts), PATIENCE_SECONDS)
            self.hub.waiting.discard(self.name)
            assert is_over, "a worker waits for ever"
            if self.hub.is_due(place, "sent"):
                raise Killed
            if len(posts) < len(self.members) or self.hub.is_due(place, "after"):
                self._break(tensor)
        return finish([posts[name] for name in self.members])

    def _post(self, tensor, name, finish):
        self.counts[name] += 1
        self.total[name] += 1
        key, place = (self.number, name, self.counts[name]), (self.name, name, self.total[name])
        handle = next(self.handles)
        with self.hub.changed:
            if self.has_noticed:
                raise self.HorovodInternalError("Horovod has been shut down")
            if self.hub.is_due(place, "unsent"):
                raise Killed
            if self.hub.is_due(place, "awaited"):
                others = {*self.members} - {self.name}
                assert self.hub.changed.wait_for(
                    lambda: self.hub.waiting >= others, PATIENCE_SECONDS
                )
                raise Killed
            self.hub.posts[key][self.name] = tensor.clone()
            self.hub.changed.notify_all()
        self.pending[handle] = tensor, finish, key, place
        return handle

    def _is_over(self, posts):
        is_broken = self.has_noticed or self.number in self.hub.broken
        is_deserted = self.hub.left.intersection(self.members)
        return len(posts) == len(self.members) or is_broken or is_deserted

    def _break(self, tensor):
        self.has_noticed = True
        self.hub.broken.add(self.number)
        self.hub.changed.notify_all()
        tensor.add_(7)
        raise self.HorovodInternalError("as the test wants it, or another worker is gone")


class Context(SimpleNamespace):
    """Of a worker without a driver, which leaves as any other does."""

    leaves_now = WorkerContext.leaves_now
    is_unwanted = WorkerContext._is_unwanted


def context(hub, rank):
    """What a worker needs to know about its job."""
    identity = WorkerIdentity(worker=WorkerId("node", rank))
    context = Context(
        settings=LaunchSettings(launch=WorkerLaunch(identity=identity)),
        planner=LocalPlanner(BalanceConfig(balance=False)),
        rendezvous_id=0,
        client=None,
        farewell=None,
        run=RunIdentity(),
        tell=lambda _: None,
        payload=lambda: b"",
        heard=lambda _: None,
        begin=lambda *_: None,
        reset_requested=False,
        stop_requested=False,
        leave_reason=None,
        may_leave=lambda: True,
        is_cut_off=False,
        await_driver=lambda: None,
        reset_done=lambda _: None,
    )
    context.collective = HorovodCollective(
        elastic=True, is_unwanted=context.is_unwanted, hvd=ThreadHorovod(hub, rank)
    )
    context.collective.start()
    context.agreed = lambda rendezvous_id, _: setattr(context, "rendezvous_id", rendezvous_id)
    return context


def run_together(hub, work):
    """Run `work(context)` for each worker; what they returned, in order, but of those that died."""
    results, errors = {}, []

    def one(rank):
        try:
            hub.await_turn(rank)
            results[rank] = work(context(hub, rank))
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
        with hub.changed:
            hub.left.add(rank)
            hub.changed.notify_all()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(hub.size)]
    with _no_garbage_collection():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a worker trains for ever"
    if errors:
        raise errors[0]
    return [results[rank] for rank in sorted(results)]


@contextmanager
def _no_garbage_collection():
    """While threads share torch's default generator, which real workers have to themselves.

    `Generator.get_state` makes a Python object while it holds the generator's mutex. A collection
    that this sets off may let another thread go on, which then waits for that mutex with Python's
    interpreter lock in its hands: both would stand still for ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
