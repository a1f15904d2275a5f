"""One process place of the job."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.output.console import WorkerOutput
from hetero_hvd.driver.workers.micro_batch_cap import MemoryCap
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.messages import (
    Admit,
    Crashed,
    Entered,
    Finished,
    FromWorker,
    Leaving,
    MicroBatchRaised,
    Ready,
    ScriptEnded,
    WorkerId,
)

LastWord = ScriptEnded | Leaving | Crashed


@dataclass(eq=False, kw_only=True)
class Slot:
    """One process place, through all restarts of its worker.

    Attributes:
        worker: Who runs there.
        node: The node, as nodes.yaml described it at the last start.
        number: Of this slot among those of the job, 0-based; a slot that is gone leaves it to one
            that comes.
        host: The worker's name as a Horovod host, new at each restart.
        process: The running process; None between two.
        ready: What the running worker said of itself; None before.
        admission: With which the running worker was made a member; None before.
        left: Set while the running worker takes no part any more, and has not ended yet.
        last_word: What the running worker has said of its end; None: it has not ended, or silently.
        num_entered: Loops over epochs that the running worker's script has begun.
        num_finished: So many of them are done with all their epochs.
        holds_state: Whether the running worker is a member that has the state of the training.
        is_wanted: Whether nodes.yaml still has it.
        num_restarts: So many so far.
        num_refusals: So many times in a row its node had no free slot, or no free device, for it.
        refused_since_seconds: Since the first of these, monotonic clock.
        memory: What its worker may put into memory at once.
        heard_at_seconds: When the worker last sent something, monotonic clock.
    """

    worker: WorkerId
    node: NodeConfig
    output: WorkerOutput
    number: int = 0
    host: str = ""
    process: WorkerProcess | None = None
    ready: Ready | None = None
    admission: Admit | None = None
    left: asyncio.Event = field(default_factory=asyncio.Event)
    last_word: LastWord | None = None
    num_entered: int = 0
    num_finished: int = 0
    holds_state: bool = False
    is_wanted: bool = True
    num_restarts: int = 0
    num_refusals: int = 0
    refused_since_seconds: float = 0.0
    memory: MemoryCap = field(default_factory=MemoryCap)
    heard_at_seconds: float = field(default_factory=time.monotonic)

    @property
    def has_ended_silently(self) -> bool:
        """Of one whose process has ended: whether it was lost, whatever its exit code."""
        return self.ready is not None and self.is_wanted and self.last_word is None

    @property
    def is_available(self) -> bool:
        """Whether Horovod may count on it."""
        return self.ready is not None and self.is_wanted and not self.left.is_set()

    @property
    def is_leaving(self) -> bool:
        """Whether it trains until others can go on without it."""
        is_there = self.process is not None and not self.left.is_set()
        return is_there and self.holds_state and not self.is_wanted

    def runs_as(self, host: str) -> bool:
        """Whether its running worker has this name as a Horovod host."""
        return self.process is not None and self.host == host

    def is_busy(self, now_seconds: float) -> bool:
        """Whether its worker computes, though it says nothing; to be called again and again."""
        if self.process is not None and self.output.pulse.is_due(now_seconds):
            self.process.look()
        return self.output.pulse.is_busy(now_seconds)

    def is_starting(self, now_seconds: float) -> bool:
        """Whether its worker is not ready, but does something; to be called again and again."""
        if self.process is None or self.ready is not None:
            return False
        self.is_busy(now_seconds)
        return self.output.pulse.is_active(now_seconds)

    def waits_for(self, now_seconds: float) -> str | None:
        """What keeps its worker from training, in words; to be called again and again.

        None: nothing does, or nobody wants it.
        """
        if self.ready is not None or not self.is_wanted:
            return None
        if self.num_refusals:
            return "waiting for a free device"
        if self.process is None:
            return "waiting to be started"
        is_active = self.is_starting(now_seconds)
        if not self.output.pulse.has_answered:
            return f"waiting for {'the process' if self.node.is_local else self.node.launcher}"
        return "loading the script" if is_active else "waiting in the script"

    def came_back(self, *, is_refused: bool) -> None:
        """Its process has ended; `is_refused`: others have its place or its device."""
        if is_refused and not self.num_refusals:
            self.refused_since_seconds = time.monotonic()
        self.num_refusals = self.num_refusals + 1 if is_refused else 0
        self.output.known_line = self.output.tail[-1] if is_refused and self.output.tail else None

    def waits_for_device(self, wait_seconds: float) -> bool:
        """Whether others have its device, and it has not waited for so long yet."""
        waited_seconds = time.monotonic() - self.refused_since_seconds
        return bool(self.num_refusals) and waited_seconds < wait_seconds

    def may_become_ready(self, wait_seconds: float) -> bool:
        """Whether it is ready, or was not given up; so long it may wait for its device."""
        if self.ready is not None or self.waits_for_device(wait_seconds):
            return True
        return not self.num_restarts and not self.num_refusals

    def is_through(self, other: Slot) -> bool:
        """Whether it has finished the loop over epochs that another worker is still in."""
        return self.num_finished >= other.num_entered > other.num_finished

    def ended(self) -> None:
        """Its process is gone."""
        self.num_entered = self.num_finished = 0
        self.holds_state = False
        self.process = self.ready = self.admission = self.last_word = None
        self.left.clear()

    def heard(self, message: FromWorker) -> None:
        """Its worker has sent something."""
        self.heard_at_seconds = time.monotonic()
        if isinstance(message, MicroBatchRaised):
            self.memory.told = message.micro_batch_size
        if isinstance(message, Entered):
            self.num_entered += 1
        if isinstance(message, Finished):
            self.num_finished = self.num_entered
        if isinstance(message, LastWord):
            self.last_word = message
