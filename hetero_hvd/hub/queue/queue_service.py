"""The queue as a part of a hub: its devices, its socket, and a look at its jobs again and again."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from hetero_hvd.errors import UserError
from hetero_hvd.hub.queue.devices.node_owners import NodeOwners
from hetero_hvd.hub.queue.job_process import JobUser
from hetero_hvd.hub.queue.job_questions import progress_of
from hetero_hvd.hub.queue.job_queue import JobQueue
from hetero_hvd.hub.queue.queue_cluster import QueueCluster
from hetero_hvd.hub.queue.queue_http import QueueHttp, digest_of
from hetero_hvd.hub.queue.queue_orders import QueueOrders
from hetero_hvd.hub.queue.queue_socket import QueueSocket
from hetero_hvd.run.web.scraping.exposition import Exposition
from hetero_hvd.security.local_sockets import PeerUser

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
ASK_SECONDS = 5.0
RETRY_SECONDS = 5.0
SOCKET = "queue.sock"


@dataclass(frozen=True, kw_only=True)
class HubQueue:
    """What the command line says of it.

    Attributes:
        nodes: A nodes.yaml with all devices that it gives to jobs.
        environment: Of the hub.
        socket: Where it takes orders; None: in the store.
        operators: Names of users who may act on all jobs.
        tokens: Over HTTP: each with whose it is.
    """

    nodes: Path
    environment: Mapping[str, str]
    socket: Path | None = None
    operators: tuple[str, ...] = ()
    tokens: tuple[tuple[bytes, PeerUser], ...] = ()


class RunningQueue:
    """The queue while the hub is there.

    Args:
        http: Its operations.
        tasks: What goes on by itself.

    Attributes:
        http: As above.
    """

    def __init__(self, http: QueueHttp, tasks: set[asyncio.Task[None]]) -> None:
        self.http = http
        self._tasks = tasks

    def look(self) -> None:
        """Raise what has ended its work: better no queue than one that does the wrong thing."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        """End its work; the jobs go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


async def open_queue(
    options: HubQueue,
    store: Path,
    now: Callable[[], float],
    lost_nodes: Callable[[], Collection[str]],
    opened: AsyncExitStack,
) -> RunningQueue:
    """Serve jobs until what is opened is closed; the jobs themselves go on.

    Raises:
        UserError: Its nodes, its file or its socket cannot be had.
    """
    cluster = QueueCluster(options.nodes, options.environment)
    owners = NodeOwners(options.nodes, lambda: cluster.has_guests)
    queue = _queue(store, cluster, now, lost_nodes, owners)
    orders = QueueOrders(queue, options.operators)
    socket = QueueSocket(options.socket or store / SOCKET, orders)
    opened.push_async_callback(socket.close)
    await socket.listen()
    tasks = {asyncio.create_task(work) for work in (_look(queue), _ask(queue), owners.follow())}
    tokens = {digest_of(token): user for token, user in options.tokens}

    def metrics(accept: str) -> Exposition:
        return queue.metrics.render(queue.state, accept)

    running = RunningQueue(QueueHttp(orders, tokens, metrics), tasks)
    opened.push_async_callback(running.close)
    return running


def _queue(
    store: Path,
    cluster: QueueCluster,
    now: Callable[[], float],
    lost_nodes: Callable[[], Collection[str]],
    owners: NodeOwners,
) -> JobQueue:
    if os.geteuid() == 0:
        store.chmod(0o711)  # each user has to get through to his jobs; all files are private
    return JobQueue(store, cluster, now, user_of, lost_nodes=lost_nodes, owners=owners.here)


async def _look(queue: JobQueue) -> None:
    is_failing = False
    while True:
        try:
            queue.look()
            is_failing = False
        except (OSError, UserError) as error:
            if not is_failing:
                logger.warning("the queue stands still: %s", error)
            is_failing = True
        await asyncio.sleep(RETRY_SECONDS if is_failing else LOOK_SECONDS)


async def _ask(queue: JobQueue) -> None:
    """Have the jobs tell how far they are."""
    while True:
        await asyncio.sleep(ASK_SECONDS)
        running = queue.running()
        asked = (asyncio.to_thread(progress_of, *where) for where in running.values())
        for name, facts in zip(running, await asyncio.gather(*asked), strict=True):
            if facts is not None:
                queue.progressed(name, facts)


def user_of(uid: int) -> JobUser | None:
    """As whom the jobs of a user run; None: as this process.

    Raises:
        UserError: The machine does not know the user.
    """
    if uid == os.geteuid():
        return None
    try:
        found = pwd.getpwuid(uid)
    except KeyError as error:
        raise UserError(f"user {uid}: this machine knows no such user") from error
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return JobUser(uid, found.pw_gid, groups)
