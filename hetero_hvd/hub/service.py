"""The life of a hub: store, port, a look at the fleet each second, sealing, until it is ended."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hetero_hvd.errors import UserError
from hetero_hvd.hub.announcer import HubAnnouncer
from hetero_hvd.hub.commands import HubCommands
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.server import HubServer
from hetero_hvd.hub.store import SEAL_BYTES, SampleStore
from hetero_hvd.probes.kernel.boot_clock import boot_id, boot_seconds

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class HubOptions:
    """What the command line says.

    Attributes:
        key: The cluster key.
        store: Folder of all that is kept.
        address: To listen on; None for all.
        port: To listen on; 0 for any.
        seal_bytes: Of a journal.
    """

    key: bytes
    store: Path
    address: str | None
    port: int
    seal_bytes: int = SEAL_BYTES


def open_store(folder: Path, seal_bytes: int = SEAL_BYTES) -> SampleStore:
    """The store of this machine's hub.

    Raises:
        JobError: Another hub has it, or it cannot be used.
    """
    return SampleStore(folder, boot=boot_id(), clock=boot_seconds, seal_bytes=seal_bytes)


async def serve_cluster(options: HubOptions) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        UserError: The store or the port cannot be had.
    """
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    store = open_store(options.store, options.seal_bytes)
    fleet = Fleet(store, time.monotonic)
    commands = HubCommands(store, fleet)
    server = HubServer(options.key, store, fleet, commands.act)
    try:
        port = await server.listen(options.address, options.port)
    except OSError as error:
        raise UserError(f"port {options.port}: cannot listen: {error.strerror}") from error
    logger.info("hub %s listens on port %d", store.index.identity, port)
    sealing = asyncio.create_task(_seal(store))
    announcer = HubAnnouncer(options.key, store.index.identity, options.address, port)
    try:
        while not ending.is_set():
            fleet.look()
            await announcer.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), LOOK_SECONDS)
    finally:
        await announcer.close()
        await server.close()
        sealing.cancel()
        with suppress(asyncio.CancelledError):
            await sealing
        store.close()


async def _seal(store: SampleStore) -> None:
    """Seal journals as they become large or old; on a full disk they stay, and it is told once."""
    is_failing = False
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if not store.is_seal_due:
            continue
        try:
            await asyncio.to_thread(store.seal)
            is_failing = False
        except OSError as error:
            if not is_failing:
                is_failing = True
                logger.warning("%s: cannot seal: %s", store.folder, error.strerror)
