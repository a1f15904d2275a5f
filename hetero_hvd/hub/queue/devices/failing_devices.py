"""Devices that guards of jobs wanted to be rid of: they are out of the pool for a while.

When nobody trains on a device no guard sees whether it is well again, so it is tried: after ten
minutes, then after twice as long, up to a day. What does not pass by itself, such as a GPU that has
fallen off the bus, stays out until its entry in the cluster's nodes.yaml changes, also when the hub
is another one.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from pathlib import Path

import msgspec

from hetero_hvd.core.backoff import doubled
from hetero_hvd.core.guard.allowance import DRAINED_PART
from hetero_hvd.core.view.queued.job_progress import FailingNode
from hetero_hvd.whole_file import write_whole

logger = logging.getLogger(__name__)

FIRST_SECONDS, MAX_SECONDS = 600.0, 86400.0


class FailingDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a device.

    Attributes:
        entry: Digest of its entry in the file.
        until_seconds: Then it is tried again, on the queue's clock; null: never.
        num_times: That it has left the pool so far.
        words: Why.
    """

    entry: str
    until_seconds: float | None
    num_times: int
    words: str


class FailingDevices:
    """All of them.

    Args:
        path: Where they are kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._devices: dict[str, FailingDevice] = {}
        self._refused: set[str] = set()
        with suppress(OSError, msgspec.DecodeError):
            self._devices = msgspec.json.decode(path.read_bytes(), type=dict[str, FailingDevice])

    def is_failing(self, device: str, entry: str, now_seconds: float) -> bool:
        """Whether a device is out of the pool.

        Args:
            device: Which.
            entry: Digest of its entry as it is now.
            now_seconds: On the queue's clock.
        """
        found = self._devices.get(device)
        if found is None or found.entry != entry:
            return False
        return found.until_seconds is None or now_seconds < found.until_seconds

    def note(
        self, device: str, entry: str, told: FailingNode, now_seconds: float, num_devices: int
    ) -> bool:
        """A guard has told of a device that is in the pool.

        Args:
            device: Which.
            entry: See `is_failing`.
            told: What it says.
            now_seconds: On the queue's clock.
            num_devices: Of the cluster; no more than a quarter of them leave at a time: a hot room
                is an alert, not a shutdown.

        Returns:
            Whether it leaves the pool.

        Raises:
            OSError: The disk does not take it; then it has not left.
        """
        before = self._devices.get(device)
        if self.is_failing(device, entry, now_seconds):
            return False
        num_away = sum(
            self.is_failing(name, each.entry, now_seconds) for name, each in self._devices.items()
        )
        if num_away >= max(1, num_devices // DRAINED_PART):
            if device not in self._refused:
                self._refused.add(device)
                logger.warning(
                    "%s stays: %d devices are away already: %s", device, num_away, told.words
                )
            return False
        self._refused.discard(device)
        num_times = before.num_times if before is not None and before.entry == entry else 0
        seconds = math.inf if told.is_lasting else doubled(FIRST_SECONDS, num_times, MAX_SECONDS)
        found = FailingDevice(
            entry=entry,
            until_seconds=now_seconds + seconds if math.isfinite(seconds) else None,
            num_times=num_times + 1,
            words=told.words,
        )
        self._write({**self._devices, device: found})
        then = f"is tried again in {seconds / 60:.0f} min" if seconds < math.inf else "stays away"
        logger.warning("%s leaves the pool and %s: %s", device, then, told.words)
        return True

    def _write(self, devices: dict[str, FailingDevice]) -> None:
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(devices)))
        self._devices = devices
