"""Starts a worker's process, here or through ssh, and owns its handle."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from hetero_hvd.config import NodeConfig
from hetero_hvd.config.node import AGENT_PORT
from hetero_hvd.config.paths import own_path
from hetero_hvd.discovery.exit_codes import EXIT_NO_CONNECTION, EXIT_NO_PLACE
from hetero_hvd.driver.output.split_lines import LineSplitter
from hetero_hvd.errors import JobError

DIAL = ("-m", "hetero_hvd.agent.client")
SUPERVISOR = ("-m", "hetero_hvd.supervisor")
UNREACHABLE_CODES = frozenset({EXIT_NO_CONNECTION, EXIT_NO_PLACE})
"""Exit codes that say something of the way to the node, nothing of the script."""

GRACE_SECONDS = 5.0
"""After an order to end, before the supervisor kills, unless it is told otherwise."""

CUT_SECONDS = 1.0
"""After that, before its handle is killed."""

KILL_SECONDS = 1.0
"""After an order to kill: time for it to reach a remote node before the connection is cut."""

COUNT_SECONDS = 30.0
"""For a node to say how many GPUs it has: ssh's own 10 s to connect, and a slow file system."""

MAX_WORDS_BYTES = 200
LAST_OUTPUT_SECONDS = 0.3
"""After a process's end: how long a child of its may keep the output open."""


class Output(Protocol):
    """Takes what a process writes."""

    def feed(self, data: bytes) -> None:
        """The next piece, wherever it was cut."""

    def flush(self) -> None:
        """That was all."""


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """What the supervisor on the node should run. Sent over its input, never on a command line.

    Attributes:
        command: The user's command.
        directory: Working directory.
        environment: Added to the node's own; holds the job's key.
        gpu: Index of the slot's GPU among those of the node; None to leave CUDA's variable alone.
    """

    command: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    gpu: int | None


def supervisor_command(node: NodeConfig, *arguments: str) -> list[str]:
    """The argument vector that runs the supervisor on a node; never a string for a local shell."""
    command = [node.python or sys.executable, *SUPERVISOR, *arguments]
    if node.launcher == "local":
        return command
    if node.launcher == "agent":
        where = [node.address, str(node.port or AGENT_PORT), node.identity_file or ""]
        tls = ["--tls", node.tls_file, node.name] if node.tls_file else []
        return [sys.executable, *DIAL, *where, *tls, *arguments]
    options = [
        "BatchMode=yes",
        "ConnectTimeout=10",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
    ]
    options += [f"{name}={value}" for name, value in node.ssh_options.items()]
    vector = ["ssh", "-T", *(part for option in options for part in ("-o", option))]
    if node.port is not None:
        vector += ["-p", str(node.port)]
    if node.identity_file is not None:
        vector += ["-i", str(own_path(node.identity_file, f"{node.name}: identity_file"))]
    target = f"{node.user}@{node.address}" if node.user else node.address
    return [*vector, target, "--", f"exec {shlex.join(command)}"]


def launch_order(
    node: NodeConfig, slot: int, command: Sequence[str], job_environment: dict[str, str]
) -> LaunchOrder:
    """What to run in a slot of a node.

    Args:
        node: The node.
        slot: Index of the slot.
        command: The user's command.
        job_environment: Who the worker is and where its driver listens.
    """
    shared = {
        name: value for name, value in os.environ.items() if name.startswith(("HOROVOD_", "NCCL_"))
    }  # Horovod's own settings must be equal on all workers, also on those behind ssh
    environment = {**shared, "PYTHONUNBUFFERED": "1"}
    if node.emulate is not None:
        environment["OMP_NUM_THREADS"] = "1"  # several emulated nodes share this machine's cores
    environment.update(node.env)
    if node.devices is not None:
        device = node.devices[slot] if node.devices else ""
        environment["CUDA_VISIBLE_DEVICES"] = str(device)
    settings = {
        "emulate": asdict(node.emulate) if node.emulate else None,
        "interface": node.interface,
        "max_local_batch_size": node.max_local_batch_size,
        "memory_limit_bytes": node.memory_limit_bytes,
    }
    environment["HETERO_HVD_NODE"] = json.dumps(settings)
    environment.update(job_environment)
    return LaunchOrder(
        command=tuple(command),
        directory=node.directory or str(Path.cwd()),
        environment=environment,
        gpu=None if node.devices is not None else slot,
    )


class WorkerProcess(asyncio.SubprocessProtocol):
    """A worker's process, through its supervisor. Used in the loop's thread only.

    Attributes:
        exited: Its exit code, 128 + n if signal n ended it; 255 also means that ssh failed.
    """

    def __init__(self, output: Output) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._output = output
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
            job: Whose worker it is, in words, for an agent that has several to serve.

        Raises:
            OSError: The interpreter or ssh is not there.
        """
        words = ["--job", job] if node.launcher == "agent" else []
        process = await cls.run(supervisor_command(node, *words), output)
        process.tell(json.dumps(asdict(order)))
        return process

    @classmethod
    async def run(cls, vector: Sequence[str], output: Output) -> WorkerProcess:
        """Start what talks to a node.

        Raises:
            OSError: There is no such program.
        """
        _, process = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(output),
            *vector,
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
        self._output.feed(data)

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
            self._output.flush()
            self.exited.set_result(self._code if self._code >= 0 else 128 - self._code)
            if self._transport is not None:
                self._transport.close()

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
        OSError: The interpreter or ssh is not there.
    """
    answer = _LastLine()
    process = await WorkerProcess.run(supervisor_command(node, "--gpus"), answer)
    try:
        code = await asyncio.wait_for(asyncio.shield(process.exited), timeout_seconds)
    except TimeoutError as error:
        words = f"; its last line is {answer.text!r}" if answer.text else ""
        raise JobError(f"no answer in {timeout_seconds:g} s{words}") from error
    finally:
        process.cut()
        await asyncio.wait({process.exited}, timeout=KILL_SECONDS)
    if code or not (answer.text.isascii() and answer.text.isdigit()):
        raise JobError(answer.text or exit_in_words(code))
    return int(answer.text)


def exit_in_words(code: int) -> str:
    """An exit code for people."""
    if code > 128:  # noqa: PLR2004 - the shell's convention
        try:
            return f"was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exited with code {code}"
