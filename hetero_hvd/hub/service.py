"""The life of a hub: store, port, a look at the fleet each second, sealing, until it is ended."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hetero_hvd.core.recording.retention import Retention
from hetero_hvd.discovery.receiver import PORT_HINTS
from hetero_hvd.errors import JobError, job_error
from hetero_hvd.hub.announced_nodes import AnnouncedNodes
from hetero_hvd.hub.announcer import HubAnnouncer
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.http.api import HubApi
from hetero_hvd.hub.http.ingest import ForeignIngest
from hetero_hvd.hub.keeping import StoreKeeping
from hetero_hvd.hub.queue.queue_http import QueueHttp
from hetero_hvd.hub.queue.queue_service import HubQueue, RunningQueue, open_queue
from hetero_hvd.hub.server import HubServer
from hetero_hvd.hub.storage.sealing import seal_apart
from hetero_hvd.hub.storage.store import SEAL_BYTES, SampleStore
from hetero_hvd.probes.kernel.boot_clock import boot_id, boot_seconds
from hetero_hvd.run.web.access import Access
from hetero_hvd.run.web.operations import DOCUMENT
from hetero_hvd.run.web.server import HttpEnd, HttpServer
from hetero_hvd.security.connection_limiter import ConnectionLimiter, setting_at_fault
from hetero_hvd.security.descriptors import raise_limit

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
RETRY_SECONDS = 30.0
KEEPING_SECONDS = 3600.0
LATE_SECONDS = 5.0
"""For samples that are under way when a session is stopped; a node may have just been lost."""

MAX_HTTP_STRANGERS = 64
KEEP_ALL = Retention()


@dataclass(frozen=True, kw_only=True)
class HubOptions:
    """What the command line says.

    Attributes:
        key: The cluster key.
        store: Folder of all that is kept.
        address: To listen on; None for all.
        port: To listen on; 0 for any.
        listen: UDP port for nodes that announce themselves to this machine; 0: none.
        seal_bytes: Of a journal.
        http: Its HTTP side; None: it has none.
        retention: How long samples are kept.
        queue: Its queue of jobs; None: it has none.
    """

    key: bytes
    store: Path
    address: str | None
    port: int
    listen: int = 0
    seal_bytes: int = SEAL_BYTES
    http: HubHttp | None = None
    retention: Retention = KEEP_ALL
    queue: HubQueue | None = None


@dataclass(frozen=True, kw_only=True)
class HubHttp:
    """Its HTTP side.

    Attributes:
        end: Where.
        access: Who may do what.
    """

    end: HttpEnd
    access: Access

    def look(self) -> None:
        """Tell of token files that cannot be used any more."""
        self.access.look()


def open_store(folder: Path, seal_bytes: int = SEAL_BYTES) -> SampleStore:
    """The store of this machine's hub.

    Raises:
        JobError: Another hub has it, or it cannot be used.
    """
    return SampleStore(
        folder, boot=boot_id(), clock=boot_seconds, seal_bytes=seal_bytes, sealer=seal_apart
    )


async def serve_cluster(options: HubOptions) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        UserError: The store or a port cannot be had.
    """
    raise_limit()  # each agent has a connection
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with AsyncExitStack() as opened:  # closed the other way round, whatever fails
        store = open_store(options.store, options.seal_bytes)
        opened.callback(store.close)
        # Whoever writes in the store ends before it goes.
        opened.push_async_callback(loop.shutdown_default_executor)
        fleet = Fleet(store, time.monotonic)
        opened.push_async_callback(fleet.look)
        announced = AnnouncedNodes(
            options.key, store.index.identity, options.address, options.listen
        )
        commands = HubCommands(store, fleet, announced, late_seconds=LATE_SECONDS)
        keeping = StoreKeeping(
            store, options.retention, commands.unwritten, fleet.note, fleet.forget
        )
        sealing = asyncio.create_task(_seal(store, keeping))
        opened.push_async_callback(_ended, sealing)
        server = HubServer(options.key, store, fleet, commands.act)
        opened.push_async_callback(server.close)
        port = await _listen(server, options)
        logger.info("hub %s listens on port %d", store.index.identity, port)
        await announced.open()
        opened.push_async_callback(announced.close)
        queue = await _queue(options.queue, store, fleet, opened)
        operations = None if queue is None else queue.http
        if http := await _http(options.http, store, commands, server, operations):
            opened.push_async_callback(http.close)
        announcer = HubAnnouncer(options.key, store.index.identity, options.address, port)
        opened.push_async_callback(announcer.close)
        while not ending.is_set():
            await fleet.look()
            for each in (server, announced, queue, options.http):
                if each is not None:
                    each.look()
            if sealing.done():
                sealing.result()
            await announcer.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), LOOK_SECONDS)


async def _listen(server: HubServer, options: HubOptions) -> int:
    """Accept connections; gives the port.

    Raises:
        JobError: The address or the port cannot be had.
    """
    try:
        return await server.listen(options.address, options.port)
    except OSError as error:
        setting = setting_at_fault(error) if options.address else "port"
        where = options.address if setting == "address" else f"port {options.port}"
        hint = PORT_HINTS.get(error.errno or 0, "").format(user="hub")
        words = f"--{setting}: cannot listen at {where}: {error.strerror}{hint}"
        raise job_error(words, error) from error


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _queue(
    options: HubQueue | None, store: SampleStore, fleet: Fleet, opened: AsyncExitStack
) -> RunningQueue | None:
    """Give devices to jobs too, if that is wanted."""
    if options is None:
        return None
    return await open_queue(options, store.folder, store.now_seconds, fleet.lost_nodes, opened)


async def _http(
    options: HubHttp | None,
    store: SampleStore,
    commands: HubCommands,
    server: HubServer,
    queue: QueueHttp | None,
) -> HttpServer | None:
    """Answer over HTTP too, if that is wanted.

    Raises:
        UserError: The port or the certificate cannot be had.
    """
    if options is None:
        return None
    door = ConnectionLimiter("http", MAX_HTTP_STRANGERS)
    ingest = ForeignIngest(store, server.put, time.monotonic)
    access = options.access
    if queue is not None:
        access = replace(access, is_user=queue.knows)
    more = () if queue is None else queue.operations
    api = HubApi(access, store, commands, ingest, door, queue=more)
    http = HttpServer(options.end, door)
    await http.listen(api.app())
    logger.info("the page is at %s/, the API at %s%s", http.url, http.url, DOCUMENT)
    return http


async def _seal(store: SampleStore, keeping: StoreKeeping) -> None:
    """Seal journals as they become large or old; on a full disk they stay, and it is told once.

    Before that, and each hour, what is not to be kept any longer is deleted.
    """
    is_failing = False
    keeping_is_due = 0.0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        is_seal_due = store.is_seal_due
        if not is_seal_due and time.monotonic() < keeping_is_due:
            continue
        try:
            await asyncio.to_thread(keeping.look)
            keeping_is_due = time.monotonic() + KEEPING_SECONDS
            if is_seal_due:
                await asyncio.to_thread(store.seal)
            is_failing = False
        except (OSError, JobError) as error:
            if not is_failing:
                is_failing = True
                logger.warning("%s: cannot seal, the journals stay: %s", store.folder, error)
            await asyncio.sleep(RETRY_SECONDS)
