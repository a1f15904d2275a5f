"""Hands notices on in the background: whoever takes them may be slow, or dead."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from hetero_hvd.errors import TransientError, UserError

logger = logging.getLogger(__name__)

Notice = dict[str, Any]
"""Plain data, as it is documented in docs/operations/guard.md."""

MAX_WAITING = 100
"""Notices that wait for one that takes none; further ones are left out, and that is said."""

MAX_TRIES = 8
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
"""Between two tries; it doubles up to the second: about two minutes for all of them."""

CLOSE_SECONDS = 1.0


class Notifier:
    """A thread, and a bounded queue before it.

    Args:
        deliver: Hands one notice on; raises TransientError where another try may help, UserError
            where it would not. May block, at most so long as its own time-out says.
        what: Which way this is, for people.
        say: Tells people, from the thread; once until it works again.
        first_retry_seconds: See `FIRST_RETRY_SECONDS`.
    """

    def __init__(
        self,
        deliver: Callable[[Notice], None],
        what: str,
        say: Callable[[str], None],
        *,
        first_retry_seconds: float = FIRST_RETRY_SECONDS,
    ) -> None:
        self._deliver = deliver
        self._what = what
        self._say = say
        self._first_retry_seconds = first_retry_seconds
        self._queue: queue.Queue[Notice | None] = queue.Queue(MAX_WAITING)
        self._closed = threading.Event()
        self._is_told = False
        self._thread = threading.Thread(target=self._work, name=what, daemon=True)
        self._thread.start()

    def send(self, notice: Notice) -> None:
        """Hand it on, soon or never; does not block."""
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            self._tell("does not keep up")

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Try what waits once more, for so long at most."""
        self._closed.set()
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(timeout_seconds)

    def _work(self) -> None:
        while (notice := self._queue.get()) is not None:
            self._hand_on(notice)

    def _hand_on(self, notice: Notice) -> None:
        wait_seconds = self._first_retry_seconds
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                self._deliver(notice)
            except TransientError as error:
                logger.warning("%s: %s", self._what, error)
                self._tell(f"{error}; it is tried again" if tries_left else str(error))
            except UserError as error:
                self._tell(str(error))
                return
            except Exception:  # whatever it is: a notice is worth no more than a line
                logger.exception("%s has failed", self._what)
                self._tell("has failed, see logs/driver.log")
                return
            else:
                self._is_told = False
                return
            if not tries_left or self._closed.wait(wait_seconds):
                break
            wait_seconds = min(2 * wait_seconds, MAX_RETRY_SECONDS)
        logger.warning("%s: a notice is given up", self._what)

    def _tell(self, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._say(f"guard: {self._what} {why}; the training goes on")
