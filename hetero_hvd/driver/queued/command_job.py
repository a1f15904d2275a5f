"""A job of a queue that is any command.

`python -m hetero_hvd.driver.queued.command_job NODES OUTPUT WAIT_SECONDS -- COMMAND` runs it once,
through the supervisor of its node, which leases all its devices. It is no training: nobody joins or
leaves, and nothing is kept of it when it is ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.config import NodeConfig, NodesFile
from hetero_hvd.core.backoff import doubled
from hetero_hvd.core.guard.idleness import Idleness
from hetero_hvd.core.view.queued.job_progress import ProgressFacts
from hetero_hvd.driver.network.control_socket import ControlSocket
from hetero_hvd.driver.output.signs import SignFilter
from hetero_hvd.driver.workers.launch_order import ONE_GPU, LaunchOrder, launch_order
from hetero_hvd.driver.workers.launchers.registry import launcher_of
from hetero_hvd.driver.workers.worker_process import WorkerProcess
from hetero_hvd.errors import UserError
from hetero_hvd.exit_codes import EXIT_NO_PLACE, EXIT_TRY_AGAIN, EXIT_USER_ERROR
from hetero_hvd.messages import NodeSampled
from hetero_hvd.messages.launch import LAUNCH_VARIABLE
from hetero_hvd.probes.sampling.local_samples import read_sample
from hetero_hvd.probes.sampling.node_orders import SAMPLE

LOOK_SECONDS = 5.0
GRACE_SECONDS = 30.0
"""From SIGTERM to SIGKILL: a notebook's server asks its kernels to save what they have."""

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 10.0
"""Between two tries to have the devices."""


class CommandOutput:
    """Shows what the command writes, and keeps what the supervisor tells of it.

    Args:
        clock: Monotonic.
        gpus: Indices or UUIDs of those that it has.

    Attributes:
        idleness: Of its devices.
        has_begun: Whether it runs, or did.
    """

    def __init__(self, gpus: Sequence[int | str], clock: Callable[[], float]) -> None:
        self._gpus = gpus
        self._clock = clock
        self._signs = SignFilter()
        self.idleness = Idleness(has_gpu=bool(gpus), now_seconds=clock())
        self.has_begun = False

    def feed(self, data: bytes) -> None:
        """The next piece."""
        words, signs = self._signs.feed(data)
        sys.stdout.buffer.write(words)
        sys.stdout.buffer.flush()
        for _state, _own, of_all in signs.looks:
            self.has_begun = True
            self.idleness.processor(of_all, self._clock())
        for sample in signs.samples:
            told = read_sample(sample)
            for gpu in told.devices if isinstance(told, NodeSampled) else ():
                if gpu.index in self._gpus or gpu.uuid in self._gpus:
                    self.idleness.gpu(gpu.use_ratio, self._clock())

    def flush(self) -> None:
        """That was all."""
        sys.stdout.buffer.write(self._signs.flush())
        sys.stdout.buffer.flush()


def gpus_of(nodes: Sequence[NodeConfig]) -> list[int | str]:
    """Of all entries, which are devices of one node.

    Raises:
        UserError: They are not.
    """
    if len({(node.launcher, node.address, node.port) for node in nodes}) > 1:
        raise UserError("a command runs on one node: --needs node==NAME")
    if len(nodes) > 1 and not all(node.devices for node in nodes):
        raise UserError("a command has one slot of a node without GPUs: --devices 1")
    return [gpu for node in nodes for gpu in node.devices or ()]


def order_of(nodes: Sequence[NodeConfig], command: Sequence[str], holder: str) -> LaunchOrder:
    """What the supervisor should run: the command with all of these devices."""
    order = launch_order(nodes[0], 0, command, {}, holder=holder)
    environment = {n: v for n, v in order.environment.items() if n != LAUNCH_VARIABLE}
    if gpus := gpus_of(nodes):
        environment |= dict.fromkeys(ONE_GPU, ",".join(map(str, gpus)))
    return replace(order, environment=environment)


class CommandJob:
    """Its life.

    Args:
        nodes: One entry for each of its devices.
        command: What to run.
        folder: For the socket by which the queue asks how it is.
        wait_seconds: For so long others may have its devices.
    """

    def __init__(
        self,
        nodes: Sequence[NodeConfig],
        command: Sequence[str],
        folder: Path,
        wait_seconds: float,
    ) -> None:
        self._node = nodes[0]
        self._holder = f"{folder.name} (process {os.getpid()})"
        self._gpus = gpus_of(nodes)
        self._order = order_of(nodes, command, self._holder)
        self._output = CommandOutput(self._gpus, time.monotonic)
        self._control = ControlSocket(folder, {"progress": self._told})
        self._wait_seconds = wait_seconds
        self._is_ending = asyncio.Event()

    async def run(self) -> int:
        """Until it has ended; gives its exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._is_ending.set)
        await self._control.listen()
        deadline = time.monotonic() + self._wait_seconds
        num_tries = 0
        try:
            while True:
                code = await self._try()
                is_taken = code == EXIT_NO_PLACE and not self._output.has_begun
                if self._is_ending.is_set() or not is_taken or time.monotonic() > deadline:
                    break
                pause = doubled(FIRST_RETRY_SECONDS, num_tries, MAX_RETRY_SECONDS)
                num_tries += 1
                await self._passed(pause)
        finally:
            self._control.close()
        is_lost = code in launcher_of(self._node).unreachable_codes
        return EXIT_TRY_AGAIN if is_lost else code

    async def _try(self) -> int:
        process = await WorkerProcess.start(self._node, self._order, self._output, job=self._holder)
        if self._gpus:
            process.tell(f"{SAMPLE}{LOOK_SECONDS:g}")
        ending = asyncio.ensure_future(self._is_ending.wait())
        while not process.exited.done():
            process.look()
            waited: set[asyncio.Future[Any]] = {process.exited, ending}
            await asyncio.wait(waited, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                process.allow(GRACE_SECONDS)
                process.terminate()
                break
        ending.cancel()
        return await process.exited

    async def _passed(self, seconds: float) -> None:
        """So much time, or less if it is to end."""
        waiting = asyncio.ensure_future(self._is_ending.wait())
        await asyncio.wait({waiting}, timeout=seconds)
        waiting.cancel()

    def _told(self, _question: object) -> str:
        idle = self._output.idleness.seconds(time.monotonic())
        return msgspec.json.encode(ProgressFacts(idle_seconds=idle)).decode()


def main(words: Sequence[str]) -> int:
    """Run one; gives its exit code."""
    (nodes_file, output, wait_seconds, _), command = words[:4], words[4:]
    try:
        folder = Path(output)
        folder.mkdir(exist_ok=True)
        nodes = NodesFile([Path(nodes_file)], os.environ, {}).current.nodes

        async def run() -> int:
            return await CommandJob(nodes, command, folder, float(wait_seconds)).run()

        return asyncio.run(run())
    except UserError as error:
        sys.stdout.write("\n".join(error.lines) + "\n")
        return EXIT_TRY_AGAIN if error.may_pass else EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
