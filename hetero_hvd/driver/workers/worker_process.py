"""A worker's process, wherever it runs: its start, its handle and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Protocol

from hetero_hvd.config import NodeConfig
from hetero_hvd.driver.workers.goodbye import Goodbye
from hetero_hvd.driver.workers.launch_order import LaunchOrder
from hetero_hvd.driver.workers.launchers.registry import launcher_of
from hetero_hvd.exit_codes import EXIT_NO_CONNECTION, SIGNALLED, as_exit_code

GRACE_SECONDS = 5.0
"""After an order to end, before the supervisor kills, unless it is told otherwise."""

CUT_SECONDS = 1.0
"""After that, before its handle is killed."""

KILL_SECONDS = 1.0
"""After an order to kill: time for it to reach a remote node before the connection is cut."""

LAST_OUTPUT_SECONDS = 0.3
"""After a process's end: how long a child of its may keep the output open."""


class Output(Protocol):
    """Takes what a process writes."""

    def feed(self, data: bytes) -> None:
        """The next piece, wherever it was cut."""

    def flush(self) -> None:
        """That was all."""


class WorkerProcess(asyncio.SubprocessProtocol):
    """A worker's process, through its supervisor. Used in the loop's thread only.

    Args:
        output: Takes what it writes.
        goodbye: Finds what its supervisor says at its end; None: it says nothing.

    Attributes:
        exited: Its exit code, 128 + n if signal n ended it; 255 also means that the way to its node
            has failed.
    """

    def __init__(self, output: Output, goodbye: Goodbye | None = None) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._output = output
        self._goodbye = goodbye
        self._code = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self.grace_seconds = GRACE_SECONDS
        self._least_seconds = 0.0
        self._term_at: float | None = None
        self._cutting: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls, node: NodeConfig, order: LaunchOrder, output: Output, *, job: str = ""
    ) -> WorkerProcess:
        """Start it.

        Args:
            node: Where.
            order: What to run there.
            output: Takes what it writes.
            job: Whose worker it is, in words.

        Raises:
            OSError: There is no such program as the launcher needs.
            UserError: A path in the node's settings cannot be understood.
        """
        process = await cls.run(node, (), output, job=job)
        process.tell(json.dumps(asdict(order)))
        return process

    @classmethod
    async def run(
        cls, node: NodeConfig, arguments: Sequence[str], output: Output, *, job: str = ""
    ) -> WorkerProcess:
        """Start a node's supervisor.

        Args:
            node: Where.
            arguments: Of the supervisor.
            output: Takes what it writes.
            job: Who asks, in words.

        Raises:
            OSError: There is no such program as the launcher needs.
            UserError: A path in the node's settings cannot be understood.
        """
        launcher = launcher_of(node)
        goodbye = Goodbye() if launcher.says_goodbye else None
        _, process = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(output, goodbye),
            *launcher.command(node, arguments, job),
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is for the driver, who ends the workers in order
        )
        return process

    def terminate(self) -> None:
        """Ask it to end; who does not within its grace is killed."""
        self.tell("TERM")
        self._term_at = asyncio.get_running_loop().time()
        self._cut_after_grace()

    def allow(self, grace_seconds: float, *, whatever_follows: bool = False) -> None:
        """Give it so long to end from when it is asked to, even if it was already.

        Args:
            grace_seconds: So long.
            whatever_follows: Whether a shorter grace that is told later does not count.
        """
        if whatever_follows:
            self._least_seconds = grace_seconds
        self.grace_seconds = max(grace_seconds, self._least_seconds)
        self.tell(f"GRACE {self.grace_seconds:.1f}")
        if self._term_at is not None:
            self._cut_after_grace()

    def _cut_after_grace(self) -> None:
        loop = asyncio.get_running_loop()
        if self._cutting is not None:
            self._cutting.cancel()
        at_seconds = (self._term_at or loop.time()) + self.grace_seconds + CUT_SECONDS
        self._cutting = loop.call_at(at_seconds, self.cut)

    def kill(self) -> None:
        """End it at once."""
        self.tell("KILL")
        asyncio.get_running_loop().call_later(KILL_SECONDS, self.cut)

    def look(self) -> None:
        """Ask its supervisor how it is; `driver.output.pulse` finds the answer in its output."""
        self.tell("LOOK")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: the process is there."""
        assert isinstance(transport, asyncio.SubprocessTransport)  # noqa: S101
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002
        """Called by asyncio: output; taken at once, so that the worker never waits for us."""
        self._output.feed(data if self._goodbye is None else self._goodbye.feed(data))

    def process_exited(self) -> None:
        """Called by asyncio: the process has ended, but may have children that hold its output."""
        code = self._transport.get_returncode() if self._transport else None
        self._code = 0 if code is None else code
        asyncio.get_running_loop().call_later(LAST_OUTPUT_SECONDS, self._finish)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Called by asyncio: the process has ended and all output is here."""
        self._finish()

    def _finish(self) -> None:
        if not self.exited.done():
            if self._goodbye is not None:
                self._output.feed(self._goodbye.flush())
            self._output.flush()
            self.exited.set_result(self._exit_code())
            if self._transport is not None:
                self._transport.close()

    def _exit_code(self) -> int:
        """That of the supervisor; without the good-bye that there should be, that it was lost."""
        code = as_exit_code(self._code)
        if self._goodbye is None:
            return code
        if self._goodbye.exit_code is not None:
            return self._goodbye.exit_code
        return code if code > SIGNALLED else EXIT_NO_CONNECTION

    def tell(self, line: str) -> None:
        """Give the supervisor a line."""
        stdin = self._transport.get_pipe_transport(0) if self._transport else None
        if isinstance(stdin, asyncio.WriteTransport) and not stdin.is_closing():
            stdin.write(f"{line}\n".encode())

    def cut(self) -> None:
        """Kill the process here and what it has started, such as ssh's proxy; no more is told."""
        if not self.exited.done() and self._transport is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
