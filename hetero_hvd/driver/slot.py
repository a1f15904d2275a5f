"""One process place of the job."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.launcher import WorkerProcess
from hetero_hvd.driver.memory_cap import MemoryCap
from hetero_hvd.driver.output import WorkerOutput
from hetero_hvd.messages import Admit, FromWorker, MicroBatchRaised, Ready, WorkerId


@dataclass(eq=False, kw_only=True)
class Slot:
    """One process place, through all restarts of its worker.

    Attributes:
        worker: Who runs there.
        node: The node, as nodes.yaml described it at the last start.
        host: The worker's name as a Horovod host, new at each restart.
        process: The running process; None between two.
        ready: What the running worker said of itself; None before.
        admission: With which the running worker was made a member; None before.
        left: Set while the running worker takes no part any more, and has not ended yet.
        is_wanted: Whether nodes.yaml still has it.
        num_restarts: So many so far.
        memory: What its worker may put into memory at once.
        heard_at_seconds: When the worker last sent something, monotonic clock.
    """

    worker: WorkerId
    node: NodeConfig
    output: WorkerOutput
    host: str = ""
    process: WorkerProcess | None = None
    ready: Ready | None = None
    admission: Admit | None = None
    left: asyncio.Event = field(default_factory=asyncio.Event)
    is_wanted: bool = True
    num_restarts: int = 0
    memory: MemoryCap = field(default_factory=MemoryCap)
    heard_at_seconds: float = field(default_factory=time.monotonic)

    @property
    def is_available(self) -> bool:
        """Whether Horovod may count on it."""
        return self.ready is not None and self.is_wanted and not self.left.is_set()

    def ended(self) -> None:
        """Its process is gone."""
        self.process = self.ready = self.admission = None
        self.left.clear()

    def heard(self, message: FromWorker) -> None:
        """Its worker has sent something."""
        self.heard_at_seconds = time.monotonic()
        if isinstance(message, MicroBatchRaised):
            self.memory.told = message.micro_batch_size
