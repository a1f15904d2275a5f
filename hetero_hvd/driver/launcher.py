"""Starts a worker's process, here or through ssh, and owns its handle."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from hetero_hvd.config import NodeConfig
from hetero_hvd.config.node import AGENT_PORT

DIAL = ("-m", "hetero_hvd.discovery.dial")
SUPERVISOR = ("-m", "hetero_hvd.worker")
TERM_SECONDS = 6.0
"""After an order to end: the supervisor's own 5 s, and one more before its handle is killed."""

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
        vector += ["-i", str(Path(node.identity_file).expanduser())]
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

    @classmethod
    async def start(cls, node: NodeConfig, order: LaunchOrder, output: Output) -> WorkerProcess:
        """Start it.

        Raises:
            OSError: The interpreter or ssh is not there.
        """
        loop = asyncio.get_running_loop()
        _, process = await loop.subprocess_exec(
            lambda: cls(output),
            *supervisor_command(node),
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is for the driver, who ends the workers in order
        )
        process.tell(json.dumps(asdict(order)))
        return process

    def terminate(self) -> None:
        """Ask it to end; who does not within a few seconds is killed."""
        self.tell("TERM")
        asyncio.get_running_loop().call_later(TERM_SECONDS, self._kill_handle)

    def kill(self) -> None:
        """End it at once."""
        self.tell("KILL")
        asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill_handle)

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

    def _kill_handle(self) -> None:
        if not self.exited.done() and self._transport is not None:
            self._transport.kill()


async def count_gpus(node: NodeConfig) -> int:
    """How many GPUs a node has, asked on the node itself; 0 if it does not answer."""
    process = await asyncio.create_subprocess_exec(
        *supervisor_command(node, "--gpus"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    output, _ = await process.communicate()
    return int(output) if output.strip().isdigit() else 0


def exit_in_words(code: int) -> str:
    """An exit code for people."""
    if code > 128:  # noqa: PLR2004 - the shell's convention
        try:
            return f"was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exited with code {code}"
