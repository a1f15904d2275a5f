"""Where the workers of a membership meet: Horovod's rendezvous protocol on one asyncio server.

Same HTTP protocol as Horovod's own server (`horovod/runner/http/http_server.py`), so its C++ client
works with it, but a GET waits until its key is there: polling clients and a thread per request make
most of the seconds that Elastic Horovod needs for a reset. And it is closed: only addresses from
which a worker has shown its certificate are answered, nothing is ever unpickled, and
only members count in the driver's barrier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Protocol

from hetero_hvd.driver.membership.http_requests import (
    MAX_HEAD_BYTES,
    Request,
    RequestError,
    read_request,
    reply,
    send,
)
from hetero_hvd.driver.network.connections import Caller, Callers
from hetero_hvd.messages import MembersMet

logger = logging.getLogger(__name__)

MAX_STORED_BYTES = 256 * 2**20
MAX_CONNECTIONS = 8192
ACCEPTED_AT_ONCE, BACKLOG = 64, 1024
READ_SECONDS = 10.0
"""For a request to arrive."""

WAIT_SECONDS = 10.0
"""For a key to appear; then 404, and Horovod's client asks again until its own timeout."""

FAREWELL_SECONDS = 60.0
"""A worker that the driver regards as lost can still hear that it is no member."""

REFUSAL_SECONDS = 0.2
"""Before a worker that is no member is told so: it may ask again and again."""

REFUSED = b""
"""The value of every key of a rendezvous that is refused. Horovod's client would take an error
status for a hiccup and ask three times, half a second apart (`gloo/http_store.cc`, PerformHTTP); no
bytes where an address should be end its attempt at once (`gloo/transport/tcp/address.cc`)."""

RANK_AND_SIZE = "rank_and_size"
NOT_A_MEMBER = b"-1,-1,-1,-1,-1,-1"
"""Horovod's answer to a removed worker (`runner/common/util/hosts.py`, INVALID_SLOT_INFO)."""


ALL = re.compile(r"all\.([1-9][0-9]{0,5})")
"""Key for what so many ranks have stored in its scope, each as much, one after the other: what our
Horovod asks for in place of each rank's own (`scripts/horovod/patches`)."""


class Barrier(Protocol):
    """What the server needs of Horovod's driver."""

    def finished(self) -> bool:
        """Whether the job is over."""

    def has_rank_assignment(self, host: str, slot: int) -> bool:
        """Whether it is a member."""

    def wait_for_rank(self, host: str, slot: int) -> bytes:
        """Block until all members are here or gone; then the new place in Horovod's format."""


class Member(Protocol):
    """Horovod's SlotInfo, as far as it matters here."""

    hostname: str


@dataclass
class Meeting:
    """One way of members into a membership; monotonic seconds.

    Attributes:
        began_at: When the first one asked for its rank.
        ranked_at: When all had theirs; infinite: they have not yet.
        num_requests: Asked of the server.
        processor_began_at: Processor time of this process when it began.
        is_told: Whether `Rendezvous.met` has told of it.
    """

    began_at: float = field(default_factory=time.monotonic)
    ranked_at: float = math.inf
    num_requests: int = 0
    processor_began_at: float = field(default_factory=time.process_time)
    is_told: bool = False


class Rendezvous:
    """The server. Everything runs in the loop's thread, but `init` and `stop`, which Horovod calls.

    Args:
        max_descriptors: Of this process; half of them may be connections here.

    Attributes:
        refused: Requests answered with an error, and connections turned away.
        useful_at_seconds: When a member last gave or got something of the others; monotonic.
        meeting: The newest one.
    """

    def __init__(self, max_descriptors: int = 2 * MAX_CONNECTIONS) -> None:
        self.refused = 0
        self.useful_at_seconds = -math.inf
        self.meeting = Meeting()
        self._on_members: Callable[[set[str]], None] = lambda _: None
        self._on_return: Callable[[str], None] = lambda _: None
        self._loop = asyncio.get_running_loop()
        self._barrier: Barrier | None = None
        self._allowed: set[str] = set()
        self._known: set[str] = set()
        self._members: set[str] = set()
        self._gone: set[str] = set()
        self._values: dict[tuple[str, str], asyncio.Future[bytes | None]] = {}
        self._wanted_whole: dict[str, int] = {}
        self._stored_bytes = 0
        self._is_broken = False
        self._pending: dict[str, asyncio.Future[bytes]] = {}
        self._pending_since = 0.0
        self._servers: dict[str, asyncio.Server] = {}
        self._callers = Callers(min(MAX_CONNECTIONS, max_descriptors // 2))

    def follow(
        self, *, on_members: Callable[[set[str]], None], on_return: Callable[[str], None]
    ) -> None:
        """Have these called in the loop's thread.

        Args:
            on_members: With the hosts of each new membership.
            on_return: With a member that asks for its next rank.
        """
        self._on_members = on_members
        self._on_return = on_return

    async def listen(self, address: str, host: str) -> int:
        """Accept connections of one worker: Horovod's protocol does not say who asks.

        Args:
            address: One of ours.
            host: The worker, as Horovod knows it.

        Returns:
            The port.
        """
        if host in self._servers:  # admitted again: it knows its port
            for known in self._servers[host].sockets:
                if known.getsockname()[0] == address:
                    return int(known.getsockname()[1])
            self._servers[host].close()
        end = socket.create_server((address, 0))
        port: int = end.getsockname()[1]
        server = await asyncio.start_server(
            partial(self._serve, host), sock=end, limit=MAX_HEAD_BYTES, backlog=ACCEPTED_AT_ONCE
        )
        end.listen(BACKLOG)  # asyncio has taken its own number for both
        self._servers[host] = server
        return port

    def attach(self, barrier: Barrier) -> None:
        """The driver that decides about ranks."""
        self._barrier = barrier

    def allow(self, address: str) -> None:
        """A worker from this address has shown its certificate."""
        self._allowed.add(address)

    def close(self) -> None:
        """Stop listening and end all waiting requests."""
        for server in self._servers.values():
            server.close()
        self._break()

    def init(self, members: Sequence[Member]) -> None:
        """Called by Horovod's driver in one of its threads: a new membership, an empty store."""
        hosts = {member.hostname for member in members}
        with contextlib.suppress(RuntimeError):  # the loop is closed: the job is over
            self._loop.call_soon_threadsafe(self._begin, hosts)

    def stop(self) -> None:
        """Called by Horovod's driver: the job is over. The loop's owner closes the sockets."""

    def invalidate(self, host: str) -> None:
        """A member has died: refuse the rendezvous under way.

        So the others' `init` fails now and not at the Gloo timeout. Harmless without one under way.
        """
        if host in self._members:
            self._break()

    def gone(self, host: str) -> None:
        """The driver has no process of this name any more: whoever has it gets no rank."""
        self._gone.add(host)
        self._loop.call_later(FAREWELL_SECONDS, self._close_port, host)

    def _close_port(self, host: str) -> None:
        if (server := self._servers.pop(host, None)) is not None:
            server.close()

    @property
    def waiting(self) -> set[str]:
        """Members that have come back and wait for the others."""
        return set(self._pending)

    def overdue(self, limit_seconds: float) -> set[str]:
        """Members that have let the others wait in the barrier for longer than the limit."""
        if not self._pending or time.monotonic() - self._pending_since < limit_seconds:
            return set()
        return self._members - self._pending.keys()

    def met(self, rendezvous_id: int) -> MembersMet:
        """How the members have come together that rank 0 has told of just now.

        Without a request if they have not: another trainer begins where the one before was.
        """
        meeting, now = self.meeting, time.monotonic()
        if meeting.is_told or meeting.ranked_at == math.inf:
            return MembersMet(rendezvous_id=rendezvous_id)
        meeting.is_told = True
        met_at = max(meeting.ranked_at, self.useful_at_seconds)
        return MembersMet(
            rendezvous_id=rendezvous_id,
            return_seconds=meeting.ranked_at - meeting.began_at,
            address_seconds=met_at - meeting.ranked_at,
            rest_seconds=now - met_at,
            num_requests=meeting.num_requests,
            processor_seconds=time.process_time() - meeting.processor_began_at,
        )

    def _begin(self, hosts: set[str]) -> None:
        self._break()
        if self.meeting.ranked_at < math.inf:  # the first one: nobody asks for a rank
            self.meeting = Meeting()
        self.meeting.ranked_at = time.monotonic()
        self._values.clear()
        self._wanted_whole.clear()
        self._stored_bytes = 0
        self._is_broken = False
        self._members = hosts
        self._known |= hosts
        self._on_members(hosts)

    def _break(self) -> None:
        self._is_broken = True
        for value in self._values.values():
            if not value.done():
                value.set_result(None)

    async def _serve(
        self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = writer.get_extra_info("peername")[0]
        caller = self._callers.came(peer)
        try:
            request = await self._read(caller, host, reader)
            self.meeting.num_requests += 1
            await reply(writer, HTTPStatus.OK, await self._answer(host, request))
        except RequestError as error:
            if error.status is not HTTPStatus.NOT_FOUND:
                self.refused += 1
                logger.info("rendezvous: %s: %s", peer, error)
            with contextlib.suppress(ConnectionError):
                await reply(writer, error.status, b"")
        except (ConnectionError, EOFError, TimeoutError) as error:
            logger.info("rendezvous: %s: %r", peer, error)
        except asyncio.CancelledError:
            if not caller.is_sent_away:
                raise
            self.refused += 1
            if not caller.precious_for:  # without a rank nobody is told that there is none
                send(writer, HTTPStatus.NOT_FOUND, b"")
        finally:
            self._callers.went(caller)
            writer.close()

    async def _read(self, caller: Caller, host: str, reader: asyncio.StreamReader) -> Request:
        """A request of somebody who may ask; raises RequestError."""
        if caller.peer not in self._allowed:
            raise RequestError(HTTPStatus.FORBIDDEN)
        request = await asyncio.wait_for(read_request(reader), READ_SECONDS)
        if caller.is_sent_away:  # at the moment when its request came
            raise RequestError(HTTPStatus.NOT_FOUND)
        if request.scope == RANK_AND_SIZE and request.key == f"{host}:0":
            self._callers.make_precious(caller, request.key)
        return request

    async def _answer(self, host: str, request: Request) -> bytes:
        """The body of the answer to a worker; raises RequestError."""
        name = (request.scope, request.key)
        if request.method == "GET" and request.scope == RANK_AND_SIZE:
            return await self._rank_and_size(host, request.key)
        is_member = host in self._members and host not in self._gone
        if request.method == "GET":
            return await self._value(name) if is_member else REFUSED
        if request.method == "PUT" and request.scope not in {RANK_AND_SIZE, "worker_addresses"}:
            if is_member:  # else late, of an earlier membership; an error would let it try again
                self._store(name, request.body)
            return b""
        if request.method == "DELETE":
            return b""  # Horovod's client says that it is done; the next membership clears all
        raise RequestError(HTTPStatus.FORBIDDEN)

    def _store(self, name: tuple[str, str], body: bytes) -> None:
        self._stored_bytes += len(body) + len(name[0]) + len(name[1])
        if self._stored_bytes > MAX_STORED_BYTES:
            raise RequestError(HTTPStatus.INSUFFICIENT_STORAGE)
        value = self._values.get(name)
        if value is None or value.done():
            value = self._values[name] = self._loop.create_future()
        value.set_result(body)
        self.useful_at_seconds = time.monotonic()
        self._join(name[0])

    def _join(self, scope: str) -> None:
        """Once all ranks have stored theirs, whoever waits for the whole gets it."""
        num_ranks = self._wanted_whole.get(scope, 0)
        whole = self._values.get((scope, f"all.{num_ranks}"))
        if whole is None or whole.done():
            return
        parts = []
        for rank in range(num_ranks):
            part = self._values.get((scope, str(rank)))
            if part is None or not part.done():
                return
            parts.append(part.result() or b"")
        if len({len(part) for part in parts}) == 1:  # else they can only be had one by one
            whole.set_result(b"".join(parts))

    async def _value(self, name: tuple[str, str]) -> bytes:
        value = self._values.get(name)
        if value is None:
            if self._is_broken:
                return REFUSED
            value = self._values[name] = self._loop.create_future()
            if whole := ALL.fullmatch(name[1]):
                self._wanted_whole[name[0]] = int(whole[1])
                self._join(name[0])
        try:
            body = await asyncio.wait_for(asyncio.shield(value), WAIT_SECONDS)
        except TimeoutError as error:
            raise RequestError(HTTPStatus.NOT_FOUND) from error
        if body is None or self._is_broken:
            return REFUSED
        self.useful_at_seconds = time.monotonic()
        return body

    async def _rank_and_size(self, host: str, key: str) -> bytes:
        barrier = self._barrier
        if barrier is None or host not in self._known or key != f"{host}:0":
            raise RequestError(HTTPStatus.FORBIDDEN)
        is_member = host not in self._gone and barrier.has_rank_assignment(host, 0)
        if barrier.finished() or not is_member:
            await asyncio.sleep(REFUSAL_SECONDS)
            return NOT_A_MEMBER
        pending = self._pending.get(host)
        if pending is None:  # a second request of one worker must not count twice in the barrier
            if not self._pending:
                self._pending_since = time.monotonic()
                self.meeting = Meeting(num_requests=1)
            pending = in_daemon_thread(lambda: barrier.wait_for_rank(host, 0))
            pending.add_done_callback(lambda _: self._pending.pop(host))
            self._pending[host] = pending
            self._on_return(host)
        try:
            return await asyncio.shield(pending)
        except RuntimeError as error:  # the barrier is broken, or this worker was recorded as dead
            raise RequestError(HTTPStatus.GONE) from error


def in_daemon_thread(function: Callable[[], bytes]) -> asyncio.Future[bytes]:
    """Run a blocking function in a thread that does not keep the process alive.

    A thread pool will not do: it is joined at exit, and a barrier may never be complete.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes] = loop.create_future()

    def settle(result: bytes | None, error: Exception | None) -> None:
        if error is not None:
            future.set_exception(error)
            future.exception()  # looked at: nobody may be left to ask for it
        elif result is not None:
            future.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - raised again by whoever awaits the future
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the job is over
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="rendezvous-barrier", daemon=True).start()
    return future
