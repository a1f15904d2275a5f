"""A worker of `hetero-hvd bench-comm`: measures the operations together with the others.

Every decision (how often, how far) follows from numbers that all workers have gathered, so that
all of them take the same ones.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from statistics import median
from typing import Any

import msgspec
import torch

from hetero_hvd.core.bandwidth import OPERATIONS
from hetero_hvd.core.benchmark import spread
from hetero_hvd.errors import TryAgainError, UserError
from hetero_hvd.measure.patterns import Pattern, pattern_of
from hetero_hvd.messages import CommMeasured, OperationMeasured, WorkerId
from hetero_hvd.worker.accelerator import synchronize
from hetero_hvd.worker.comm.horovod import HorovodCollective, Interrupted
from hetero_hvd.worker.comm.payloads import gather_bytes
from hetero_hvd.worker.session.worker_context import WorkerContext, device, init

NUM_WARM_UP, MIN_TIMES, MAX_TIMES = 2, 5, 200
LINK_TIMES, LINK_BYTES = 5, 4 * 2**20
LINK_PART, LINK_PATIENCE = 0.25, 4.0
"""Of the time is for the links; so many times that, where slow ones would be left out."""

Links = tuple[tuple[float, ...], ...]
Spreads = tuple[tuple[float | None, ...], ...]

SMALLEST_BYTES = 1024
ELEMENT_BYTES = 4


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to measure.

    Attributes:
        ops: Of `core.bandwidth.OPERATIONS`.
        max_bytes: Of the largest tensor.
        sizes: Bytes of the tensors, rising; empty: each twice the one before, up to `max_bytes`.
        seconds: For all together.
    """

    ops: tuple[str, ...] = OPERATIONS
    max_bytes: int = 64 * 2**20
    sizes: tuple[int, ...] = ()
    seconds: float = 60.0


class Bench:
    """The measurements of one worker.

    Args:
        collective: The rendezvous.
        plan: What to measure.
    """

    def __init__(self, collective: HorovodCollective, plan: Plan) -> None:
        self._collective = collective
        self._plan = plan
        self._began_at = time.perf_counter()

    def operations(self, where: torch.device, seconds: float) -> Iterator[OperationMeasured]:
        """Each operation over growing sizes, as far as its part of the time reaches.

        Args:
            where: Of the tensors.
            seconds: For all of them.
        """
        sizes = list(self._plan.sizes)
        while not self._plan.sizes and (not sizes or 2 * sizes[-1] <= self._plan.max_bytes):
            sizes.append(2 * sizes[-1] if sizes else SMALLEST_BYTES)
        for op in self._plan.ops:
            end = self._elapsed() + seconds / len(self._plan.ops)
            for number, size in enumerate(sizes):
                pattern = pattern_of(
                    op, size // ELEMENT_BYTES, rank=self._rank, size=self._size, where=where
                )
                before = self._elapsed()
                self._times(pattern, NUM_WARM_UP)
                now = self._elapsed()
                cost = (now - before) / NUM_WARM_UP
                if now + MIN_TIMES * cost > end and number:
                    break
                num_times = int((end - now) / (len(sizes) - number) / cost)
                yield self._measured(pattern, max(MIN_TIMES, min(num_times, MAX_TIMES)))

    def links(self, seconds: float) -> tuple[Links, Spreads]:
        """Bytes per second from each worker to each other one, and how much the times differ.

        An all-to-all in which one worker has something for one other: the time beyond that of an
        empty one is the link's. (Process sets, Horovod's other way, do not survive a reset.)
        """
        began = self._elapsed()
        floor = min(self._times(self._link(0, 0, 0), LINK_TIMES))
        times: dict[tuple[int, int], list[float]] = defaultdict(list)
        for number in range(LINK_TIMES):
            for ends in permutations(range(self._size), 2):
                patience = 1.0 if number else LINK_PATIENCE
                if self._elapsed() - began > patience * seconds:
                    break
                pattern = self._link(*ends, self.link_bytes // ELEMENT_BYTES)
                times[ends].append(self._times(pattern, 1 if number else 2)[-1])  # the first opens
        found = [[0.0] * self._size for _ in range(self._size)]
        spreads: list[list[float | None]] = [[None] * self._size for _ in range(self._size)]
        for (sender, receiver), wholes in times.items():
            # On a link so fast that the empty exchange rules, half of it is all that is known.
            whole = min(wholes)
            found[sender][receiver] = self.link_bytes / max(whole - floor, whole / 2)
            spreads[sender][receiver] = spread(wholes)
        return tuple(map(tuple, found)), tuple(map(tuple, spreads))

    @property
    def link_bytes(self) -> int:
        """What is sent over each link."""
        return min(LINK_BYTES, self._plan.max_bytes)

    @property
    def _rank(self) -> int:
        return self._collective.rank

    @property
    def _size(self) -> int:
        return self._collective.size

    def _link(self, sender: int, receiver: int, num_elements: int) -> Pattern:
        splits = torch.zeros(self._size, dtype=torch.int32)
        if self._rank == sender:
            splits[receiver] = num_elements
        tensor = torch.ones(int(splits.sum()))
        return Pattern(op="alltoall", tensor=tensor, num_bytes=0, options={"splits": splits})

    def _measured(self, pattern: Pattern, num_times: int) -> OperationMeasured:
        wrong: list[int] = []
        seconds = sorted(
            self._times(pattern, num_times, lambda found: wrong.append(pattern.num_wrong(found)))
        )
        num_wrong = self._gathered([float(sum(wrong))])
        return OperationMeasured(
            op=pattern.op,
            backend=self._collective.instruments.backend_of(pattern.tensor),
            num_bytes=pattern.num_bytes,
            count=num_times,
            min_seconds=seconds[0],
            median_seconds=median(seconds),
            p99_seconds=seconds[math.ceil(0.99 * num_times) - 1],
            num_wrong=int(sum(row[0] for row in num_wrong)),
            spread_ratio=spread(seconds),
        )

    def _times(
        self, pattern: Pattern, num_times: int, check: Callable[[Any], None] | None = None
    ) -> list[float]:
        """Of each time, in order, the seconds of the worker for which it took longest."""
        own = []
        for _ in range(num_times):
            self._gathered([0.0])  # all begin together
            began = time.perf_counter()
            name = f"bench.{pattern.op}"
            handle = self._collective.operate_async(
                pattern.op, pattern.tensor, name, pattern.options
            )
            found = self._collective.wait(handle)
            synchronize(pattern.tensor.device)
            own.append(time.perf_counter() - began)
            if check is not None:
                check(found)
        return [max(times) for times in zip(*self._gathered(own), strict=True)]

    def _elapsed(self) -> float:
        """Seconds since the start, the same number on all workers."""
        return max(row[0] for row in self._gathered([time.perf_counter() - self._began_at]))

    def _gathered(self, row: Sequence[float]) -> list[list[float]]:
        rows = torch.tensor([row], dtype=torch.float64)
        handle = self._collective.gather_rows_async(rows, f"bench.row.{len(row)}")
        found: list[list[float]] = self._collective.wait(handle).tolist()
        return found


def measure(context: WorkerContext, plan: Plan) -> CommMeasured:
    """Measure together with the other workers; all of them call it.

    Raises:
        UserError: There is nobody to talk to.
        Interrupted: A worker was lost, or came.
    """
    collective = context.collective
    if not isinstance(collective, HorovodCollective) or collective.size < 2:  # noqa: PLR2004
        raise UserError("bench-comm: there is one worker only: it needs two or more slots")
    bench = Bench(collective, plan)
    names = gather_bytes(collective, str(context.settings.worker).encode(), "bench.workers")
    own = torch.empty(0, device=device())
    kinds = gather_bytes(
        collective, collective.instruments.backend_of(own).encode(), "bench.backends"
    )
    places = [torch.device("cpu"), *([device()] if set(kinds) == {b"nccl"} else [])]
    seconds = plan.seconds * (1.0 - LINK_PART) / len(places)
    operations = [found for where in places for found in bench.operations(where, seconds)]
    links, link_spread_ratios = bench.links(plan.seconds * LINK_PART)
    return CommMeasured(
        workers=tuple(WorkerId.parse(name.decode()) for name in names),
        operations=tuple(operations),
        link_bytes=bench.link_bytes,
        links=links,
        link_spread_ratios=link_spread_ratios,
    )


def main() -> None:
    """Measure; rank 0 tells the driver."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    context = init()
    try:
        found = measure(context, plan)
    except (Interrupted, RuntimeError) as fault:  # the second is Horovod's, at the submission
        words = f"bench-comm: a worker was lost or came while measuring: {fault}"
        raise TryAgainError(words) from fault
    if (
        context.collective.rank == 0
        and context.client is not None
        and not context.client.send(found)
    ):
        raise TryAgainError("bench-comm: the driver is out of reach")


if __name__ == "__main__":
    main()
