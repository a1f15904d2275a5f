"""Which phases of the script are to be recorded on all machines: whoever has the hub is told.

`hetero_hvd.phase(name, session=True)` says so, also before this process takes part in a job.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger(__name__)

NO_DRIVER = (
    "session=True of a phase: nothing is recorded, as no hub is reached without `hetero-hvd run`; "
    "the training goes on"
)


class PhaseSessions:
    """The phases of one process that are to be recorded; may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: Counter[str] = Counter()
        self._tell: Callable[[tuple[str, ...]], object] = lambda _: None
        self._is_used = False

    def enter(self, name: str) -> None:
        """A block of this name begins."""
        with self._lock:
            self._is_used = True
            self._inside[name] += 1
            if self._inside[name] == 1:
                self._tell(self._names())

    def leave(self, name: str) -> None:
        """One has ended."""
        with self._lock:
            self._inside[name] -= 1
            if not self._inside[name]:
                del self._inside[name]
                self._tell(self._names())

    def tell_through(self, tell: Callable[[tuple[str, ...]], object]) -> None:
        """Have this called with the names at each change from now on; must not block or raise."""
        with self._lock:
            self._tell = tell
        self.tell_again()

    def tell_again(self) -> None:
        """To somebody who may have missed a change."""
        with self._lock:
            if self._is_used:
                self._tell(self._names())

    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(self._inside))


class NobodyRecords:
    """Takes the place of who would be told: says once that nothing is recorded."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, _names: tuple[str, ...]) -> None:
        """A phase has begun or ended."""
        if not self._is_said:
            self._is_said = True
            logger.warning("%s", NO_DRIVER)


phase_sessions = PhaseSessions()
"""Of this process."""
