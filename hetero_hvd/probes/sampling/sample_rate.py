"""How often a node is sampled: once a second, or more often while somebody wants that.

Who wants it says so in a file of the shared folder, again and again; the sampler goes by the
fastest of those that are still said. Standard library only.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from hetero_hvd.probes.sampling.shared_folder import SharedFolder, Version

SECONDS = 1.0
FASTEST_SECONDS = 0.25
REPEAT_SECONDS = 2.0
FORGET_SECONDS = 10.0
_NAME = "wanted-"


class RateWish:
    """Of one process that follows the samples."""

    def __init__(self) -> None:
        self._said: float | None = None
        self._said_at_seconds = float("-inf")

    def say(self, folder: SharedFolder, seconds: float) -> None:
        """Want a sample so often; call it as often as you like.

        Raises:
            OSError: The folder cannot be used any more.
        """
        now_seconds = time.monotonic()
        is_due = now_seconds - self._said_at_seconds >= REPEAT_SECONDS
        if seconds < SECONDS and (is_due or seconds != self._said):
            self._said = seconds
            self._said_at_seconds = now_seconds
            folder.write(f"{_NAME}{os.getpid()}", repr(seconds).encode())


class RateWishes:
    """What all of them want, as the sampler sees it.

    Args:
        folder: That they share.
    """

    def __init__(self, folder: SharedFolder) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[Version | None, float]] = {}

    def seconds(self) -> float:
        """Between two samples."""
        now_seconds = time.monotonic()
        wanted = [SECONDS]
        for path in self._folder.path.glob(f"{_NAME}*"):
            version = self._folder.version(path.name)
            known, at_seconds = self._seen.get(path.name, (None, now_seconds))
            if version != known:
                at_seconds = now_seconds
            self._seen[path.name] = version, at_seconds
            if now_seconds - at_seconds > FORGET_SECONDS:  # whoever it was has gone
                del self._seen[path.name]
                with suppress(OSError):
                    path.unlink()
                continue
            with suppress(ValueError):
                wanted.append(max(FASTEST_SECONDS, float(self._folder.read(path.name))))
        return min(wanted)
