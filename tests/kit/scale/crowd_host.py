"""The process of all workers: `python -m tests.kit.scale.crowd_host SOCKET SCRIPT NOTES`.

What the driver starts as a supervisor is a program of a few lines (`SHIM`): it hands its pipes over
to this process and waits for the exit code. So the driver has a process for each worker, as it
always does, and all workers are in one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hetero_hvd.messages import event_to_json
from hetero_hvd.probes.sampling.node_sampler import NodeSampler
from hetero_hvd.probes.sampling.sample_signs import sample_signs
from tests.kit.scale.fake_training import FakeTraining, Script
from tests.kit.scale.fake_worker import FakeWorker

SHIM = """#!{python} -IS
import os, socket
link = socket.socket(socket.AF_UNIX)
link.connect({path!r})
socket.send_fds(link, [b"."], [0, 1])
code = link.recv(1)
os._exit(code[0] if code else 137)
"""
STOP_SECONDS = 2.0


class Pipes:
    """The pipes of one supervisor; see `fake_worker.Supervisor`."""

    def __init__(self, link: socket.socket, fds: list[int], sample: bytes) -> None:
        self.reader = asyncio.StreamReader(limit=2**22)
        self._link = link
        self._input, self._output = fds
        self._sample = sample
        self._transports: list[asyncio.BaseTransport] = []

    async def open(self) -> None:
        """Before anything is read or written."""
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(self.reader)
        source, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(self._input, "rb", 0))
        self.output, _ = await loop.connect_write_pipe(
            asyncio.BaseProtocol, os.fdopen(self._output, "wb", 0)
        )
        self._transports += [source, self.output]

    def sample(self, machine: str) -> None:
        """Tell what the node does."""
        if not self.output.is_closing():
            sample = self._sample.replace(b"MACHINE", machine.encode())
            self.output.write(b"".join(sample_signs(sample)))

    def exit(self, code: int) -> None:
        """The shim ends with it."""
        with suppress(OSError):
            self._link.send(bytes([code]))
        self._link.close()
        for transport in self._transports:
            transport.close()


class CrowdHost:
    """Serves the shims.

    Args:
        listener: Where they come.
        script: What the workers do.
        notes: File for what happens.
    """

    def __init__(self, listener: socket.socket, script: Script, notes: Path) -> None:
        self._listener = listener
        self._notes = notes.open("w")
        self._training = FakeTraining(script, self._note)
        self._lives: set[asyncio.Task[None]] = set()
        self._num_started = 0
        sample = msgspec.structs.replace(NodeSampler().take(), machine_id="MACHINE")
        self._sample = event_to_json(sample)

    async def serve(self) -> None:
        """Until ended by SIGTERM."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        loop.add_reader(self._listener, self._accept)
        await ended.wait()
        for task in self._lives:
            task.cancel()
        if self._lives:
            await asyncio.wait(self._lives, timeout=STOP_SECONDS)
        self._notes.close()

    def _accept(self) -> None:
        link, _ = self._listener.accept()
        _, fds, _, _ = socket.recv_fds(link, 1, 2)
        link.setblocking(False)
        task = asyncio.create_task(self._live(Pipes(link, fds, self._sample), link))
        self._lives.add(task)
        task.add_done_callback(self._lives.discard)

    async def _live(self, pipes: Pipes, link: socket.socket) -> None:
        await pipes.open()
        order = await pipes.reader.readline()
        if not order:
            return
        self._num_started += 1
        worker = FakeWorker(order, pipes, self._training, self._num_started)
        asyncio.get_running_loop().add_reader(link, worker.end, 137)  # the shim was killed
        self._note("started", worker=str(worker.worker))
        try:
            await worker.live()
        except OSError as error:
            self._note("failed", error=repr(error))
        finally:
            if link.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(link)

    def _note(self, event: str, **more: Any) -> None:  # noqa: ANN401
        line = {"event": event, "at_seconds": time.monotonic(), **more}
        self._notes.write(json.dumps(line) + "\n")
        self._notes.flush()


def main() -> None:
    """Serve."""
    path, script, notes = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1024)
        listener.setblocking(False)
        asyncio.run(_serve(listener, msgspec.json.decode(script, type=Script), notes))


async def _serve(listener: socket.socket, script: Script, notes: Path) -> None:
    await CrowdHost(listener, script, notes).serve()


if __name__ == "__main__":
    main()
