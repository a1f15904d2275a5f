"""What a worker has to tell until the next exchange takes it along; bounded, and never waits."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import NamedTuple

import msgspec

from hetero_hvd.messages import Event, FromWorker, NodeEquipped, NodeSampled

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 4 * 2**20
"""Further messages are counted and left out."""

MAX_PAYLOAD_BYTES = 256 * 2**10
"""That one exchange takes along; a single message may be as large."""

Told = FromWorker | NodeSampled | NodeEquipped
"""What a worker tells who leads the run."""


class Copied(NamedTuple):
    """An event of the run, for who keeps a copy of its record.

    Attributes:
        at_unix_seconds: When it was heard.
        event: What has happened.
    """

    at_unix_seconds: float
    event: Event


class Outbox:
    """Messages of this worker, in order; may be used from any thread.

    Args:
        where: They belong, in words.

    Attributes:
        num_lost: Messages that were left out.
    """

    def __init__(self, where: str = "the record of the run") -> None:
        self.num_lost = 0
        self._where = where
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def put(self, message: Told | Copied) -> None:
        """Have it taken along."""
        entry = msgspec.msgpack.encode(message)
        with self._lock:
            is_lost = max(len(entry) - MAX_PAYLOAD_BYTES, self._num_bytes - MAX_WAITING_BYTES) > 0
            if not is_lost:
                self._waiting.append(entry)
                self._num_bytes += len(entry)
        if is_lost:
            self.num_lost += 1
            if self.num_lost == 1:
                logger.warning(
                    "more happens here than the exchanges take along to %s: what is missing there "
                    "is counted",
                    self._where,
                )

    def take(self) -> bytes:
        """The oldest, as one text of bytes; empty where nothing waits."""
        entries: list[msgspec.Raw] = []
        num_bytes = 0
        with self._lock:
            while self._waiting and num_bytes + len(self._waiting[0]) <= MAX_PAYLOAD_BYTES:
                entry = self._waiting.popleft()
                num_bytes += len(entry)
                entries.append(msgspec.Raw(entry))
            self._num_bytes -= num_bytes
        return msgspec.msgpack.encode(entries) if entries else b""

    def close(self) -> None:
        """Nothing more will come; tell how much was left out."""
        if self.num_lost:
            logger.warning("%s: %d messages of this worker are missing", self._where, self.num_lost)
            self.num_lost = 0

    def clear(self) -> None:
        """Nobody wants it any more."""
        with self._lock:
            self._waiting.clear()
            self._num_bytes = 0


def told_in(payload: bytes) -> list[Told]:
    """The messages of a worker.

    Raises:
        msgspec.DecodeError: They are none.
    """
    return msgspec.msgpack.decode(payload, type=list[Told])


def copied_in(payload: bytes) -> list[Copied]:
    """The events of rank 0.

    Raises:
        msgspec.DecodeError: They are none.
    """
    return msgspec.msgpack.decode(payload, type=list[Copied])
