"""A file in which a driver says where it is, for agents that start before it or outlive it."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

from hetero_hvd.discovery.daemon_thread import in_daemon_thread
from hetero_hvd.discovery.unicast import AnnounceTarget, UnicastSender
from hetero_hvd.errors import LASTING_ERRORS, UserError
from hetero_hvd.run.records.run_files import regular

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 4096
MAX_TARGETS = 8
"""Addresses of one driver that are told."""

ANSWER_SECONDS = 2.0
"""For a file system to answer: while it does not, what was read before it counts."""


def check_driver_file(path: Path) -> None:
    """Refuse now what no driver can write, or no agent can read: a folder, a pipe.

    Raises:
        UserError: It is such. What is not there yet, or may pass, is not.
    """
    try:
        _read(path)
    except OSError as error:
        if error.errno in {*LASTING_ERRORS, errno.ENXIO}:  # ENXIO: a socket
            raise UserError(
                f"--driver-file: {path} cannot be read: {error.strerror}; name a file with "
                "HOST:PORT in each line, which need not be there yet"
            ) from error


def _read(path: Path) -> str:
    """What is in the file; nothing if there is none.

    Raises:
        OSError: It cannot be read, or is no file.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


class DriverFile:
    """Reads the file again and again, as the next driver may be elsewhere. Used in one loop only.

    Args:
        path: Of the file, usually on a file system that all nodes share: `HOST:PORT` in each line,
            all of the same driver. It need not be there: then nobody is told.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._senders: dict[AnnounceTarget, UnicastSender] = {}
        self._reading: asyncio.Future[str] | None = None
        self._complaint = ""

    async def senders(self) -> tuple[UnicastSender, ...]:
        """Who tells the driver, one for each of its addresses; never raises."""
        if self._reading is None:
            self._reading = in_daemon_thread(lambda: _read(self._path))
        done, _ = await asyncio.wait([self._reading], timeout=ANSWER_SECONDS)
        if done:
            reading, self._reading = self._reading, None
            try:
                self._take(reading.result())
            except OSError as error:  # who was told before is told on
                self._complain(f"{self._path}: cannot be read: {error.strerror}")
        return tuple(self._senders.values())

    def _complain(self, complaint: str) -> None:
        if complaint and complaint != self._complaint:
            logger.warning("%s", complaint)
        self._complaint = complaint

    def _take(self, text: str) -> None:
        targets, complaint = [], ""
        for line in filter(None, map(str.strip, text.split("\n")[:MAX_TARGETS])):
            try:
                targets.append(AnnounceTarget.read(line, str(self._path)))
            except UserError as error:
                complaint = str(error)
        self._complain(complaint)
        self._senders = {t: self._senders.get(t) or UnicastSender(t) for t in targets}
