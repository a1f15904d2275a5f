"""The worker's end of the channel to the driver: one thread, one connection at a time."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import psutil

from hetero_hvd import channel
from hetero_hvd.config.value_types import host_in_url
from hetero_hvd.errors import ChannelError, WorkerLostError
from hetero_hvd.messages import (
    Admit,
    BatchPlan,
    ClockAsked,
    ClockTold,
    FromDriver,
    FromWorker,
    Heartbeat,
    MemberLost,
    Ready,
    ResetRequested,
    RouteAsked,
    Stop,
    TraceRequested,
    WorkerId,
)
from hetero_hvd.security.tls import client_context
from hetero_hvd.security.tls_stream import TlsStream
from hetero_hvd.security.web_socket import (
    ConnectionClosed,
    ThreadConnection,
    WebSocketException,
    connected_over,
)
from hetero_hvd.worker.session.launch_settings import LaunchSettings
from hetero_hvd.worker.session.route_probe import RouteProbe

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
CONNECT_TIMEOUT_SECONDS = 10.0
MAX_BACKOFF_SECONDS = 1.0
LEASE_SECONDS = 7.0
"""A member that has not heard of its driver for so long is cut off, and must not train on: the
driver may have replaced it. Longer than a busy driver ever needs to answer."""

REUNION_SECONDS = 30.0
"""So long a member whose lease is over waits for its driver, which may only have been paused."""

LEASED_TIMEOUT_SECONDS = 2.0
"""For a member to connect anew: a longer wait would outlast the lease."""


class Training(NamedTuple):
    """What the channel asks of the training that is under way, each time in its own thread.

    Attributes:
        phase: Gives the phase that it is in.
        waits_in: Gives what it waits in; see `whereabouts.waits_in`.
        check: Called before each heartbeat; may end this process.
    """

    phase: Callable[[], str] = str
    waits_in: Callable[[], tuple[str, str]] = lambda: ("", "")
    check: Callable[[], None] = lambda: None


class DriverClient:
    """What the driver has told this worker, and the way to answer.

    If the driver is out of reach, `send` drops and training goes on with the last plan, until the
    lease is over; the thread keeps trying to connect.

    Args:
        settings: Who this worker is and where the driver listens.
        progress: Called for each heartbeat; gives the number of applied steps.
        introduction: Called in the thread for each connection; gives the fields of `Ready` that say
            what this worker is.
        on_void: Called in the thread when this worker has lost the driver.
        on_member_lost: Called in the thread with the `rendezvous_id` of `MemberLost`.
        on_connected: Called in the thread when the driver can be told things, perhaps once more.

    Attributes:
        reset_requested: Whether the driver wants another membership.
        leaving: Who will be none of it then.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        *,
        progress: Callable[[], int],
        introduction: Callable[[], Mapping[str, Any]] = lambda: {"versions": {}},
        on_void: Callable[[], None] = lambda: None,
        on_member_lost: Callable[[int], None] = lambda _: None,
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._introduction = introduction
        self._progress = progress
        self._tls = client_context(settings.tls)
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._connection: ThreadConnection | None = None
        self._closed = threading.Event()
        self._admission: Admit | None = None
        self._plan: BatchPlan | None = None
        self._stop: Stop | None = None
        self._heard_at_seconds = time.monotonic()
        self._is_cut_off = self._is_refused = False
        self._routes = RouteProbe()
        self.reset_requested = False
        self.leaving: tuple[WorkerId, ...] = ()
        self._on_void = on_void
        self._on_member_lost = on_member_lost
        self._on_connected = on_connected
        self._training = Training()
        self._on_trace: Callable[[TraceRequested], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name="driver-channel", daemon=True)
        self._thread.start()

    def watch(self, training: Training) -> None:
        """Tell of this training with each heartbeat from now on, in place of another one."""
        self._training = training

    def trace_with(self, on_trace: Callable[[TraceRequested], None]) -> None:
        """Have this called, in the thread, when the driver wants a trace."""
        self._on_trace = on_trace

    @property
    def plan(self) -> BatchPlan | None:
        """The newest plan received."""
        return self._plan

    @property
    def stop(self) -> Stop | None:
        """The driver's order to leave, if it came."""
        return self._stop

    @property
    def is_cut_off(self) -> bool:
        """Whether the lease is over, and the driver has not come back."""
        return self._is_cut_off

    @property
    def is_given_up(self) -> bool:
        """Whether there is nothing to wait for any more: the driver is gone, or has replaced us."""
        patience = LEASE_SECONDS + REUNION_SECONDS
        return self._is_cut_off and (self._is_refused or self._silent_seconds > patience)

    @property
    def _silent_seconds(self) -> float:
        return time.monotonic() - self._heard_at_seconds

    def wait_for_admission(self) -> Admit:
        """Block until the driver makes this worker a member.

        Raises:
            WorkerLostError: The driver does not want it any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._admission is not None or self._stop is not None)
        if self._admission is None:
            raise WorkerLostError(self._stop.reason if self._stop else "no admission")
        return self._admission

    def wait_for_plan(
        self, rendezvous_id: int, *, timeout_seconds: float, newer_than: int = -1
    ) -> BatchPlan | None:
        """Block until a plan for this membership is there; None after the timeout.

        Args:
            rendezvous_id: Of the membership.
            timeout_seconds: The training waits no longer.
            newer_than: Id of a plan of it that is known already.
        """

        def is_there() -> bool:
            plan = self._plan
            is_ours = plan is not None and plan.rendezvous_id == rendezvous_id
            return is_ours and plan is not None and plan.plan_id > newer_than

        with self._changed:
            self._changed.wait_for(is_there, timeout_seconds)
            return self._plan if is_there() else None

    def send(self, message: FromWorker) -> bool:
        """Send if the driver is within reach; whether it was."""
        with self._lock:
            if self._connection is None:
                return False
            try:
                self._connection.send(channel.encode(message))
            except (WebSocketException, OSError) as error:
                logger.warning("the driver is out of reach: %s", error)
                return False
        return True

    def close(self) -> None:
        """End the connection and the thread."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.close()
        self._thread.join(timeout=CONNECT_TIMEOUT_SECONDS)
        self._routes.close()

    def _run(self) -> None:
        backoff = 0.1
        while not self._closed.is_set():
            try:
                with self._connect() as connection:
                    self._introduce_to(connection)
                    backoff = 0.1
                    self._listen(connection)
            except (WebSocketException, OSError, ChannelError, TimeoutError) as error:
                if not self._closed.is_set():
                    logger.warning("no channel to the driver: %s", error)
                self._is_refused |= _is_farewell(error)
            with self._lock:
                self._connection = None
            self._check_lease()
            self._training.check()
            self._closed.wait(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)

    def _check_lease(self) -> None:
        if self._admission is None:
            return
        silent_seconds, was_cut_off = self._silent_seconds, self._is_cut_off
        self._is_cut_off = self._is_refused or silent_seconds > LEASE_SECONDS
        if self._is_cut_off and not was_cut_off:
            logger.error("the driver is out of reach for %.0f s", silent_seconds)
            self._on_void()
        elif was_cut_off and not self._is_cut_off:
            logger.warning("the driver is within reach again")

    def _timeout_seconds(self) -> float:
        return CONNECT_TIMEOUT_SECONDS if self._admission is None else LEASED_TIMEOUT_SECONDS

    def _connect(self) -> ThreadConnection:
        address, port = self._settings.driver or ("127.0.0.1", 0)
        timeout_seconds = self._timeout_seconds()
        deadline = time.monotonic() + timeout_seconds
        connected = socket.create_connection((address, port), timeout_seconds)
        left_seconds = deadline - time.monotonic()
        # `send` is called in any thread while this one listens, which `ssl.SSLSocket` is not for.
        stream = TlsStream(connected, self._tls, channel.DRIVER_NAME, left_seconds)
        return connected_over(  # `_listen` pings: it has to know when the driver answered
            stream,
            f"ws://{host_in_url(address)}:{port}/channel",  # within TLS
            max_frame_bytes=channel.MAX_FRAME_BYTES,
            open_seconds=max(0.0, deadline - time.monotonic()),
            close_seconds=LEASED_TIMEOUT_SECONDS,
        )

    def _introduce_to(self, connection: ThreadConnection) -> None:
        self._heard_at_seconds = time.monotonic()
        with self._lock:  # nothing that `send` was given may come before `Ready`
            connection.send(channel.encode(self._ready(connection.socket)))
            self._connection = connection
        self._on_connected()

    def _ready(self, connection: socket.socket) -> Ready:
        interface = self._settings.node.interface or interface_of(connection.getsockname()[0])
        return Ready(
            worker=self._settings.worker,
            host=self._settings.launch.identity.host,
            interface=interface,
            pid=os.getpid(),
            gloo=self._routes.listen(interface),
            **self._introduction(),
        )

    def _listen(self, connection: ThreadConnection) -> None:
        next_beat = time.monotonic()
        pong: threading.Event | None = None
        while not self._closed.is_set():
            if time.monotonic() >= next_beat:
                # While a call holds the interpreter, nothing is heard, nor is anything trained.
                self._heard_at_seconds += max(0.0, time.monotonic() - next_beat)
                if pong is None or pong.is_set():
                    self._heard_at_seconds, pong = time.monotonic(), connection.ping()
                self._check_lease()
                self._training.check()
                self.send(self._heartbeat())
                next_beat = time.monotonic() + HEARTBEAT_SECONDS
            try:
                frame = connection.recv(timeout=max(0.0, next_beat - time.monotonic()))
            except TimeoutError:
                continue
            self._heard_at_seconds = time.monotonic()
            self._take(channel.from_driver(frame))

    def _heartbeat(self) -> Heartbeat:
        operation, place = self._training.waits_in()
        return Heartbeat(
            applied_steps=self._progress(),
            phase=self._training.phase(),
            operation=operation,
            place=place,
        )

    def _take(self, message: FromDriver) -> None:
        with self._changed:
            match message:
                case Admit():
                    self._admission = message
                case MemberLost():
                    self._on_member_lost(message.rendezvous_id)
                case BatchPlan():
                    self._plan = message
                case ResetRequested():
                    self.leaving = message.leaving
                    self.reset_requested = True
                case TraceRequested():
                    self._on_trace(message)
                case Stop():
                    self._stop = message
                case ClockAsked():
                    self._tell_time(message)
                case RouteAsked():
                    self._routes.answer(message, self.send)
            self._changed.notify_all()

    def _tell_time(self, question: ClockAsked) -> None:
        now = time.time()
        self.send(
            ClockTold(
                asked_at_seconds=question.asked_at_seconds,
                received_at_seconds=now,
                replied_at_seconds=now,
            )
        )


def _is_farewell(error: Exception) -> bool:
    """Whether the driver has said that this worker is none of the job any more."""
    received = error.rcvd if isinstance(error, ConnectionClosed) else None
    return received is not None and received.code == channel.NOT_EXPECTED


def interface_of(address: str) -> str:
    """Name of the network interface that holds an IP address; `lo` if none does."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return "lo"
