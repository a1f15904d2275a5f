"""Supervisors without a worker: they tell of nodes that would not be heard of without them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.output.console import MAX_SAMPLES
from hetero_hvd.driver.output.signs import SignFilter
from hetero_hvd.driver.workers.worker_process import KILL_SECONDS, WorkerProcess
from hetero_hvd.errors import UserError

logger = logging.getLogger(__name__)

MAX_WORDS_BYTES = 500
RETRY_SECONDS = 10.0
"""After a supervisor that could not be started, or has ended, before the next one."""


class NodeWatch:
    """One node.

    Args:
        node: Which.
        retry_seconds: See `RETRY_SECONDS`.

    Attributes:
        node: As above.
        process: Its supervisor; None between two.
        samples: What it has told and nobody has taken yet, oldest first; anything, if others write.
    """

    def __init__(self, node: NodeConfig, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self.node = node
        self.process: WorkerProcess | None = None
        self.samples: deque[bytes] = deque(maxlen=MAX_SAMPLES)
        self._signs = SignFilter()
        self._words = b""
        self._retry_seconds = retry_seconds
        self._task = asyncio.create_task(self._keep())

    def feed(self, data: bytes) -> None:
        """What the supervisor has written; words among it are kept for the log."""
        words, signs = self._signs.feed(data)
        self.samples.extend(signs.samples)
        self._words = (self._words + words)[-MAX_WORDS_BYTES:]

    def flush(self) -> None:
        """It has ended: the next one begins with a sign of its own."""
        self._signs = SignFilter()

    async def close(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=KILL_SECONDS)

    async def _keep(self) -> None:
        while True:
            try:
                self.process = await WorkerProcess.run(self.node, ("--samples",), self)
                code = await asyncio.shield(self.process.exited)
                words = self._words.decode(errors="replace").strip()
                logger.warning("%s: its samples have ended (%s): %s", self.node.name, code, words)
            except (OSError, UserError) as error:
                logger.warning("%s: its samples cannot be had: %s", self.node.name, error)
            finally:
                process, self.process = self.process, None
                if process is not None:
                    process.cut()
                    await asyncio.wait({process.exited}, timeout=KILL_SECONDS)
            await asyncio.sleep(self._retry_seconds)


class NodeWatches:
    """Has one for each node that is wanted. Used in the loop's thread."""

    def __init__(self) -> None:
        self._watches: dict[str, NodeWatch] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[NodeWatch]:
        return iter(tuple(self._watches.values()))

    def follow(self, nodes: Iterable[NodeConfig]) -> None:
        """Watch these nodes from now on, and no others."""
        wanted = {node.name: node for node in nodes}
        changed = {n for n, watch in self._watches.items() if watch.node != wanted.get(n)}
        for name in changed:
            task = asyncio.create_task(self._watches.pop(name).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for name, node in wanted.items():
            if name not in self._watches:
                self._watches[name] = NodeWatch(node)

    async def close(self) -> None:
        """End all."""
        self.follow(())
        if self._closing:
            await asyncio.wait(self._closing)
