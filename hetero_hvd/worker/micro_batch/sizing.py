"""How many samples go through the model at once on this worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec
import torch

from hetero_hvd.core.micro_batch.batch_size_search import KneeSearch
from hetero_hvd.core.micro_batch.memory_model import MemoryModel
from hetero_hvd.core.micro_batch.micro_batch_limit import MicroBatchLimit, evenly, smaller
from hetero_hvd.errors import InvariantError
from hetero_hvd.messages import MicroBatchRaised, StepTiming, WorkerId
from hetero_hvd.messages.launch import NodeSettings
from hetero_hvd.probes.machine.memory import MemoryUse, host_memory
from hetero_hvd.worker.micro_batch.memory_meter import MemoryMeter
from hetero_hvd.worker.options import StepOptions

AUTO = -1
CPU = torch.device("cpu")


class PassMemory(NamedTuple):
    """What the memory holds, and what the passes take of it; without an optimizer's parts.

    Attributes:
        limit_bytes: All that the process or the device can have.
        idle_bytes: What is in use before the passes.
        line: (m0, m1) of `MemoryModel`; None before anything was measured.
        smallest: Samples of the smallest micro-batch that can be had, >= 1.
        largest: Samples of the largest one that is wanted; 0 = the whole share.
    """

    limit_bytes: float
    idle_bytes: float
    line: tuple[float, float] | None
    smallest: int
    largest: int


class MicroBatchSizer:
    """Chooses the size of the micro-batches, step by step.

    It is what the script asks for or the whole share, unless something says that the memory will
    not hold it: peaks measured so far, a failure, or a kill.

    Args:
        wanted: What the script asks for, samples; 0 = the whole share; -1 = what pays.
        device: Where the model is.
        is_fixed: Nothing else than `wanted` will do.
        limit: Samples of the largest one, as the kernel has killed a worker that had more; 0 = any.

    Attributes:
        parts_bytes: Gives what an optimizer's state in parts has of this memory, and will have.
        size: Of the micro-batches of the step under way, samples; 0 before the first.
        shape: Of the passes of that step: this worker's samples in it, and `size`.
    """

    def __init__(
        self,
        wanted: int = 0,
        device: torch.device = CPU,
        *,
        is_fixed: bool = False,
        limit: int = 0,
    ) -> None:
        self._wanted = max(0, wanted)
        self._search = KneeSearch() if wanted == AUTO else None
        self._device = device
        self._is_fixed = is_fixed
        self._limit = MicroBatchLimit(limit)
        self._model = MemoryModel()
        self._cap = self._capacity = 0
        self._meter: MemoryMeter | None = None
        self._entered_with: Collection[WorkerId] | None = None
        self._members: frozenset[WorkerId] = frozenset()
        self._largest_done = 0
        self._is_done = False
        self._tell: Callable[[MicroBatchRaised], object] = lambda _: None
        self._told = 0
        self._reserved_bytes = 0
        self.parts_bytes: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        self.size = 0
        self.shape = (0, 0)

    @classmethod
    def of(cls, options: StepOptions, device: torch.device, limit: int) -> MicroBatchSizer:
        """What the script's options ask for, within a limit of the memory."""
        size = options.micro_batch_size or 0
        wanted = AUTO if size == "auto" else size
        return cls(wanted, device, is_fixed=options.equal_micro_batches, limit=limit)

    @property
    def smallest(self) -> str:
        """What is never cut, in words."""
        if self._is_fixed:
            return (
                f"{self._wanted} samples at a time, fewer are not allowed by grain or "
                "equal_micro_batches"
            )
        return "one sample at a time"

    @property
    def largest(self) -> int:
        """Samples in a micro-batch at most, as things are; 0 = not limited."""
        return self._wanted if self._is_fixed else smaller(self._asked, self._held)

    @property
    def _asked(self) -> int:
        """Samples in a micro-batch, whatever the memory holds; 0 = the whole share."""
        return self._wanted if self._search is None else self._search.size

    @property
    def _held(self) -> int:
        """Samples that the memory holds; 0 = not limited, as far as known."""
        return smaller(self._cap, self._seen_to_hold)

    @property
    def _seen_to_hold(self) -> int:
        """What the user and failures say of it, and no measured peak; 0 = not limited."""
        return smaller(self._capacity, self._limit.at(time.monotonic()))

    @property
    def is_proven(self) -> bool:
        """Whether a step with micro-batches of this size was done before."""
        return self.size <= self._largest_done

    def enter(
        self,
        workers: Collection[WorkerId],
        node: NodeSettings,
        tell: Callable[[MicroBatchRaised], object],
    ) -> None:
        """Take note of the members: when others train together, what failed may be tried again.

        Args:
            workers: All members.
            node: The most memory and samples at a time that the user allows.
            tell: Tells the driver, at once.
        """
        if workers is self._entered_with:
            return
        self._entered_with = workers
        self._tell = tell
        self._capacity = node.max_local_batch_size or 0
        members = frozenset(workers)
        if self._members and members != self._members:
            self._limit.reset()
        self._members = members
        if self._meter is None:
            self._meter = MemoryMeter(self._device, node.memory_limit_bytes)
            self._meter.restart()
            self._model.start(self._meter.read().used_bytes - self.parts_bytes()[0])

    def memory(self, node: NodeSettings) -> PassMemory:
        """What the memory holds just now.

        Args:
            node: The most memory that the user allows.
        """
        use = MemoryMeter(self._device, node.memory_limit_bytes).read()
        line = self._model.line()
        idle_bytes = self._model.idle_bytes
        return PassMemory(
            limit_bytes=float(use.limit_bytes - self._reserved_bytes),
            idle_bytes=use.used_bytes - self.parts_bytes()[0] if line is None else idle_bytes,
            line=line,
            smallest=self._wanted if self._is_fixed else 1,
            largest=self._wanted if self._is_fixed else smaller(self._asked, self._seen_to_hold),
        )

    def host_left_bytes(self, node: NodeSettings) -> int:
        """What the host's memory has left just now, wherever the model is.

        Args:
            node: The most memory that the user allows, of the device where the model is.
        """
        use = host_memory(node.memory_limit_bytes if self._device.type == "cpu" else None)
        return use.limit_bytes - use.used_bytes

    def reserve(self, num_bytes: int) -> None:
        """Leave room in the host's memory for something that comes and goes beside the steps."""
        if self._device.type == "cpu":
            self._reserved_bytes = num_bytes

    def choose(self, share: int) -> int:
        """The size for a step, >= 1, <= share. What the script asked for is taken as it is.

        Args:
            share: Samples of this worker, >= 1.
        """
        if self._search is not None:
            self._search.grow(share, self._held)
        limit = self.largest
        size = min(share, limit) if limit == self._wanted and limit else evenly(share, limit)
        if size != self.size:
            self._switch(size)
        self.shape = share, size
        return size

    def reject(self) -> bool:
        """The micro-batches of the step under way do not fit; whether smaller ones can be had."""
        if self.size < 1:
            raise InvariantError("a step that has not begun has no micro-batches")
        if self.size == 1 or self._is_fixed:
            return False
        self._limit.reject(self.size, now_seconds=time.monotonic())
        if self._search is not None:
            self._search.reject(self.size)
        self._told = 0
        self._is_done = False  # its peak is that of a failure
        return True

    def done(self) -> None:
        """The forward and backward passes of a step have ended well."""
        self._largest_done = max(self._largest_done, self.size)
        self._is_done = True

    def forget_peak(self) -> None:
        """The newest peak was that of something else than a step."""
        if self._meter is not None:
            self._meter.restart()

    def look(self) -> None:
        """Ask how much memory there is, if it is time; best where nobody waits for this worker."""
        if self._meter is not None:
            self._meter.look()

    def timed(self, share: int, seconds: Mapping[str, float]) -> None:
        """How long a step took.

        Args:
            share: Samples of this worker in it.
            seconds: By phase.
        """
        passes = seconds.get("forward", 0.0) + seconds.get("backward", 0.0)
        if self._search is not None and share and passes > 0:
            self._search.observe(passes / share)

    def measured(self, row: StepTiming) -> StepTiming:
        """A row of timings with what is known about the memory; learns from it."""
        if self._meter is None:
            return row
        use = self._learn(self._meter)
        return msgspec.structs.replace(
            row,
            memory_bytes=float(use.peak_bytes),
            memory_limit_bytes=float(use.limit_bytes),
            micro_batch_size=self.largest,
        )

    def _switch(self, size: int) -> None:
        if self._meter is not None:
            self._learn(self._meter)
            self._meter.restart()
        self.size = size
        self._is_done = False
        if size > self._told:
            self._told = size
            self._tell(MicroBatchRaised(micro_batch_size=size))

    def _learn(self, meter: MemoryMeter) -> MemoryUse:
        use = meter.read()
        if self._is_done and self.size:
            now_bytes, then_bytes = self.parts_bytes()
            self._model.observe(self.size, use.peak_bytes - now_bytes)
            left_bytes = use.limit_bytes - self._reserved_bytes - max(now_bytes, then_bytes)
            self._cap = self._model.cap(left_bytes)
        return use
