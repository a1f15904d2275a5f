"""One worker that computes nothing: its end of the channel to the driver, and its supervisor's."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from hetero_hvd import channel
from hetero_hvd.core.versions import COLUMNS
from hetero_hvd.messages import (
    Admit,
    BatchPlan,
    ClockAsked,
    ClockTold,
    FromWorker,
    GlooAddress,
    Heartbeat,
    MemberLost,
    Ready,
    ResetRequested,
    RouteAsked,
    RouteTold,
    Stop,
    WorkerId,
)
from hetero_hvd.messages.launch import LAUNCH_VARIABLE, TLS_VARIABLE, launch_from_text
from hetero_hvd.security.tls import client_context
from tests.kit.scale.fake_mesh import MeshClient

HEARTBEAT_SECONDS = 1.0
"""As `worker.session.driver_client` has it."""

KILLED = 137
RETRY_SECONDS = 0.1


class Supervisor(Protocol):
    """The way to the driver beside the channel: the pipes of a worker's process."""

    reader: asyncio.StreamReader

    def sample(self, machine: str) -> None:
        """Tell what the node does."""

    def exit(self, code: int) -> None:
        """The worker's process has ended."""


class Crowd(Protocol):
    """What the workers do together."""

    applied_steps: int

    def admitted(self, worker: FakeWorker) -> None:
        """One more may take part."""

    def planned(self, plan: BatchPlan) -> None:
        """The driver has told rank 0 of a plan."""

    def void(self, worker: FakeWorker) -> None:
        """A member is lost: this one leaves the rendezvous."""

    def reset(self) -> None:
        """The driver wants another membership."""

    def gone(self, worker: FakeWorker) -> None:
        """Its process has ended."""


class FakeWorker:
    """Says what a worker says. Used in the loop's thread only.

    Args:
        order: What its supervisor was told to run: a JSON line.
        supervisor: Its pipes.
        crowd: All of them.
        number: Of its start among all starts.

    Attributes:
        worker: Who it is.
        host: Its name as a Horovod host.
        node_number: Of its machine.
        admission: With which it was made a member; None before.
        rendezvous_id: The last one that it was in.
        is_silent: Whether it says nothing any more, and hears nothing.
        is_over: Whether its process has ended.
        mesh: Its way to the rendezvous; None before it was admitted.
    """

    def __init__(self, order: bytes, supervisor: Supervisor, crowd: Crowd, number: int) -> None:
        environment = json.loads(order)["environment"]
        identity = launch_from_text(environment[LAUNCH_VARIABLE]).identity
        self.worker: WorkerId = identity.worker
        self.host: str = identity.host
        self.node_number = int(self.worker.node.strip("n"))
        self.admission: Admit | None = None
        self.rendezvous_id = 0
        self.is_silent = self.is_over = False
        self.mesh: MeshClient | None = None
        self._driver = identity.driver
        self._tls = client_context(environment[TLS_VARIABLE].encode())
        self._supervisor = supervisor
        self._crowd = crowd
        self._number = number
        self._exit_code = KILLED
        self._socket: ClientConnection | None = None
        self._sampling: asyncio.Task[None] | None = None

    @property
    def source(self) -> str:
        """Its own address: another one for each node, as the driver would see it."""
        return f"127.1.{self.node_number // 250}.{self.node_number % 250 + 1}"

    async def live(self) -> None:
        """Until it has ended, or was ended."""
        tasks = [asyncio.create_task(part) for part in (self._obey(), self._talk())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self.end(self._exit_code)

    def end(self, code: int) -> None:
        """Its process ends; the first exit code counts."""
        if self.is_over:
            return
        self.is_over = True
        if self._sampling is not None:
            self._sampling.cancel()
        if self._socket is not None:
            self._socket.transport.abort()
        self._supervisor.exit(code)
        self._crowd.gone(self)

    async def part(self) -> None:
        """Its script has ended: what it has said arrives, then its process ends in order."""
        self._exit_code = 0
        if self._socket is not None:
            await self._socket.close()
        self.end(0)

    async def send(self, message: FromWorker) -> None:
        """Tell the driver, if it is there and this worker is not silent."""
        if self._socket is not None and not self.is_silent:
            with suppress(ConnectionClosed):
                await self._socket.send(channel.encode(message))

    async def _obey(self) -> None:
        """What the driver tells the supervisor."""
        while line := await self._supervisor.reader.readline():
            word, *more = line.split()
            if word == b"SAMPLE":
                self._sampling = asyncio.create_task(self._sample(float(more[0])))
            elif word in {b"TERM", b"KILL"}:
                return

    async def _sample(self, seconds: float) -> None:
        while True:
            self._supervisor.sample(self.worker.node)
            await asyncio.sleep(seconds)

    async def _talk(self) -> None:
        async with await self._connected() as self._socket:
            await self.send(self._ready())
            beating = asyncio.create_task(self._beat())
            try:
                await self._listen(self._socket)
            finally:
                beating.cancel()

    async def _connected(self) -> ClientConnection:
        """A channel; a driver that is busy may need several tries for it."""
        assert self._driver is not None  # noqa: S101
        address, port = self._driver
        while True:
            try:
                return await connect(
                    f"wss://{address}:{port}/channel",
                    ssl=self._tls,
                    server_hostname=channel.DRIVER_NAME,
                    local_addr=(self.source, 0),
                    compression=None,
                    proxy=None,
                    ping_interval=None,
                    max_size=channel.MAX_FRAME_BYTES,
                )
            except (OSError, WebSocketException):
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            async for frame in socket:
                if self.is_silent:
                    continue
                for answer in self._take(frame):
                    await self.send(answer)

    def _take(self, frame: bytes | str) -> Iterator[FromWorker]:
        """Act on a message; yields the answers."""
        match message := channel.from_driver(frame):
            case ClockAsked(asked_at_seconds=asked_at):
                now = time.time()
                yield ClockTold(
                    asked_at_seconds=asked_at, received_at_seconds=now, replied_at_seconds=now
                )
            case RouteAsked():
                yield RouteTold(host=message.host, fault="")
            case Admit():
                if self.admission is None:
                    self._admitted(message)
            case BatchPlan():
                self._crowd.planned(message)
            case MemberLost():
                if message.rendezvous_id in {0, self.rendezvous_id}:
                    self._crowd.void(self)
            case ResetRequested():
                self._crowd.reset()
            case Stop():
                self.end(143)

    def _admitted(self, admission: Admit) -> None:
        self.admission = admission
        self.rendezvous_id = admission.rendezvous_id
        server = admission.environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        port = int(admission.environment["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        self.mesh = MeshClient(server=(server, port), source=self.source)
        self._crowd.admitted(self)

    def _ready(self) -> Ready:
        number = self.node_number
        return Ready(
            worker=self.worker,
            host=self.host,
            interface="eth0",
            pid=100_000 + self._number,
            versions=dict.fromkeys(COLUMNS, "1.0"),
            device="NVIDIA H100 80GB HBM3",
            device_uuid=f"GPU-{self._number:08}-0000-0000-0000-000000000000",
            machine_id=f"{number:032x}",
            gloo=GlooAddress(
                address=f"10.1.{number // 250}.{number % 250 + 1}",
                port=40_000,
                greeting=f"{self._number:032x}",
                ports=(32768, 60999),
            ),
        )

    async def _beat(self) -> None:
        """Heartbeats, and the pings that tell whether the driver is there."""
        while self._socket is not None:
            if not self.is_silent:
                is_member = bool(self._crowd.applied_steps)
                await self._socket.ping()
                await self.send(
                    Heartbeat(
                        applied_steps=self._crowd.applied_steps if is_member else -1,
                        phase="backward" if is_member else "rendezvous",
                        operation="a reduction" if is_member else "",
                    )
                )
            await asyncio.sleep(HEARTBEAT_SECONDS)
