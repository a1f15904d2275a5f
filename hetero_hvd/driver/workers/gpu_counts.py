"""How many GPUs the nodes have that nodes.yaml says nothing of: asked beside everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from hetero_hvd.config import NodeConfig
from hetero_hvd.core.digits import whole_number
from hetero_hvd.driver.output.split_lines import LineSplitter
from hetero_hvd.driver.workers.worker_process import KILL_SECONDS, WorkerProcess
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.exit_codes import exit_in_words

COUNT_SECONDS = 30.0
"""For a node to say how many GPUs it has: ssh's own 10 s to connect, and a slow file system."""

FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 5.0, 60.0
"""Before a node that did not answer is asked again; it doubles."""

MAX_WORDS_BYTES = 200


class GpuCounts:
    """Asks each node once, again and again until it answers. Used in the loop's thread only.

    Args:
        count: Asks a node; raises UserError or OSError if that does not work.
        say: Tells people of a node that does not answer.
        on_answer: Called when a node has answered.
    """

    def __init__(
        self,
        count: Callable[[NodeConfig], Awaitable[int]],
        *,
        say: Callable[[str], None],
        on_answer: Callable[[], None],
    ) -> None:
        self._count = count
        self._say = say
        self._on_answer = on_answer
        self._known: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failed: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether a node has not answered yet that may do so soon: its first question is open."""
        return any(name not in self._failed for name in self._tasks)

    def ask(self, nodes: Iterable[NodeConfig]) -> None:
        """Ask those of these nodes that are not known, and forget all that are not among them."""
        unknown = {node.name: node for node in nodes if node.declared_slots is None}
        for name in (self._tasks.keys() | self._known.keys()) - unknown.keys():
            self._forget(name)
        for name, node in unknown.items():
            if name not in self._known and name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._ask(node))

    def slots_of(self, node: NodeConfig) -> int:
        """Worker processes on this node; 0 as long as that is not known."""
        if node.declared_slots is None and node.name not in self._known:
            return 0
        return node.resolved_slots(self._known.get(node.name, 0))

    def close(self) -> None:
        """Ask no more, and end the processes that ask."""
        self.ask(())

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._failed.discard(name)
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    async def _ask(self, node: NodeConfig) -> None:
        delay_seconds, said = FIRST_DELAY_SECONDS, ""
        while True:
            try:
                self._known[node.name] = await self._count(node)
                break
            except (OSError, UserError) as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"{node.name}: cannot be asked for its GPUs: {said}; asked again")
                self._failed.add(node.name)
                self._on_answer()
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(2 * delay_seconds, MAX_DELAY_SECONDS)
        self._failed.discard(node.name)
        del self._tasks[node.name]
        self._on_answer()


class _LastLine:
    """Keeps the last line of what a process writes."""

    def __init__(self) -> None:
        self.text = ""
        self._lines = LineSplitter(self._take)
        self.feed = self._lines.feed
        self.flush = self._lines.flush

    def _take(self, line: bytes) -> None:
        self.text = line[:MAX_WORDS_BYTES].decode(errors="replace").strip() or self.text


async def count_gpus(node: NodeConfig, *, timeout_seconds: float = COUNT_SECONDS) -> int:
    """How many GPUs a node has, asked on the node itself.

    Whatever comes of it, no process is left.

    Raises:
        JobError: It does not say, or not in time.
        OSError: There is no such program as the launcher needs.
    """
    answer = _LastLine()
    process = await WorkerProcess.run(node, ("--gpus",), answer)
    try:
        code = await asyncio.wait_for(asyncio.shield(process.exited), timeout_seconds)
    except TimeoutError as error:
        words = f"; its last line is {answer.text!r}" if answer.text else ""
        raise JobError(f"no answer in {timeout_seconds:g} s{words}") from error
    finally:
        process.cut()
        await asyncio.wait({process.exited}, timeout=KILL_SECONDS)
    number = whole_number(answer.text)
    if code or number is None:
        raise JobError(answer.text or exit_in_words(code))
    return number
