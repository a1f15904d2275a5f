"""How busy this worker's GPU is."""

from __future__ import annotations

import math
import threading

from hetero_hvd.probes.gpu.nvml import device_use

ASK_SECONDS = 2.0
CHANGED_RATIO = 0.05
"""A change below this is not worth a message."""


class DeviceUse:
    """Asks in a thread of its own: an answer may take milliseconds, and training must not wait.

    Args:
        uuid: Of the GPU; empty: there is none, and no thread.
        ask_seconds: Between two questions.
    """

    def __init__(self, uuid: str, *, ask_seconds: float = ASK_SECONDS) -> None:
        self._uuid = uuid
        self._ask_seconds = ask_seconds
        self._ratio = self._told = math.nan
        self._closed = threading.Event()
        if uuid:
            threading.Thread(target=self._watch, name="hetero-hvd-gpu", daemon=True).start()

    def news(self) -> float | None:
        """The part of the time in which a kernel ran, if it has changed since the last call."""
        ratio = self._ratio
        if not math.isfinite(ratio) or abs(ratio - self._told) < CHANGED_RATIO:
            return None
        self._told = ratio
        return ratio

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _watch(self) -> None:
        with device_use(self._uuid) as ask:
            while not self._closed.wait(self._ask_seconds):
                self._ratio = ask()
