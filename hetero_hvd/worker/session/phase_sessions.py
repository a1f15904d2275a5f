"""Which phases of the script are to be recorded on all machines: whoever has the hub is told.

`hetero_hvd.phase(name, session=True)` says so, also before this process takes part in a job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

NO_DRIVER = (
    "session=True of a phase: nothing is recorded, as no hub is reached without `hetero-hvd run`; "
    "the training goes on"
)


MAX_UNTOLD = 200
"""Changes that wait for somebody to be told: as many as a job may have recordings begin and end."""

Tell = Callable[[tuple[str, ...], float], bool]
"""Told in which phases this process is, and since how many seconds; whether somebody has heard it.
Must not block or raise."""


class PhaseSessions:
    """The phases of one process that are to be recorded; may be used from any thread.

    What nobody has heard is told again when somebody does, with how long ago it was: a script loads
    its data before it takes part in the job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: Counter[str] = Counter()
        self._tell: Tell = lambda _names, _ago_seconds: False
        self._untold: deque[tuple[tuple[str, ...], float]] = deque(maxlen=MAX_UNTOLD)
        self._is_used = False

    def enter(self, name: str) -> None:
        """A block of this name begins."""
        with self._lock:
            self._is_used = True
            self._inside[name] += 1
            if self._inside[name] == 1:
                self._changed()

    def leave(self, name: str) -> None:
        """One has ended."""
        with self._lock:
            self._inside[name] -= 1
            if not self._inside[name]:
                del self._inside[name]
                self._changed()

    def tell_through(self, tell: Tell) -> None:
        """Have this called with what nobody has heard, and at each change from now on."""
        with self._lock:
            self._tell = tell
        self.tell_again()

    def tell_again(self) -> None:
        """To somebody who may have missed a change."""
        with self._lock:
            if self._untold:
                self._tell_all()
            elif self._is_used:
                self._changed()

    def _changed(self) -> None:
        self._untold.append((tuple(sorted(self._inside)), time.monotonic()))
        self._tell_all()

    def _tell_all(self) -> None:
        while self._untold:
            names, at_seconds = self._untold[0]
            if not self._tell(names, time.monotonic() - at_seconds):
                return
            self._untold.popleft()


class NobodyRecords:
    """Takes the place of who would be told: says once that nothing is recorded."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, _names: tuple[str, ...], _ago_seconds: float) -> bool:
        """A phase has begun or ended."""
        if not self._is_said:
            self._is_said = True
            logger.warning("%s", NO_DRIVER)
        return True


phase_sessions = PhaseSessions()
"""Of this process."""
