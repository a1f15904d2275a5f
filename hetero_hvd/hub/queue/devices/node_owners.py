"""Which nodes their owners use: told by a process that has somebody watch on each of them.

It starts what watches as a driver starts its workers, so it is the driver's, and ends with the hub.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from hetero_hvd.messages import OwnerSeen

logger = logging.getLogger(__name__)

PROGRAM = "hetero_hvd.driver.queued.cluster_owners"
LOOK_SECONDS, RETRY_SECONDS = 1.0, 10.0


class NodeOwners:
    """Follows that process. Used in the loop's thread.

    Args:
        nodes: The nodes.yaml of the cluster.
        is_wanted: Whether there are guests.
    """

    def __init__(self, nodes: Path, is_wanted: Callable[[], bool]) -> None:
        self._nodes = nodes.absolute()
        self._is_wanted = is_wanted
        self._here: dict[str, str] = {}

    def here(self) -> Collection[str]:
        """Names of the nodes; what is not heard any more stays as it was."""
        return self._here.keys()

    async def follow(self) -> None:
        """Hear of owners, for ever."""
        while True:
            if not self._is_wanted():
                self._here.clear()
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                await self._hear()
            except OSError as error:
                logger.warning("nothing is heard of the owners of nodes: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _hear(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", PROGRAM, str(self._nodes)),
            stdin=asyncio.subprocess.PIPE,  # it ends with that
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            async for line in process.stdout:
                self._told(msgspec.json.decode(line, type=OwnerSeen))
        finally:
            if process.returncode is None:
                process.terminate()
        logger.warning("what hears of the owners of nodes has ended (%s)", await process.wait())

    def _told(self, told: OwnerSeen) -> None:
        if told.words:
            self._here[told.node] = told.words
            logger.info("the owner of %s is there (%s)", told.node, told.words)
        elif self._here.pop(told.node, ""):
            logger.info("the owner of %s has gone", told.node)
