"""The thread that writes checkpoints beside the training: one after the other, and one may wait."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from hetero_hvd.worker.recovery.checkpoints.store import CheckpointPart

NICENESS = 10
"""Of work beside the training: a tenth of what a thread of a step gets where both want a core."""

Result = TypeVar("Result")


class Begun(NamedTuple):
    """A checkpoint whose parts others have written already; see `CheckpointStore.begin`.

    Attributes:
        place: Where it was begun.
        parts: All of them.
    """

    place: str
    parts: tuple[CheckpointPart, ...]


class Copy(NamedTuple):
    """A copy of the state that is to be written.

    Attributes:
        state: In the host's memory.
        applied_steps: Optimizer steps applied.
        metrics: Of the evaluation for which it is kept; empty: it is kept for another reason.
        begun: What it completes; None: it is all of a checkpoint.
        is_last: Whether the training is over, so that no other one will take its place.
        copy_seconds: See `CheckpointWritten`.
    """

    state: dict[str, Any]
    applied_steps: int
    metrics: Mapping[str, float | None]
    begun: Begun | None = None
    is_last: bool = False
    copy_seconds: float = 0.0


class Background:
    """Writes copies in the order in which they come; two of them are in memory at most.

    Args:
        write: Writes one; called in a thread, or in the caller's where none can be started.
    """

    def __init__(self, write: Callable[[Copy], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next: Copy | None = None
        self._will_look = False

    @property
    def is_busy(self) -> bool:
        """Whether a copy of the state is in memory."""
        return self._thread is not None and self._thread.is_alive()

    def drop_waiting(self) -> None:
        """Before a copy is made that takes the place of the one that waits, if one does."""
        with self._lock:
            self._next = None

    def put(self, copy: Copy) -> None:
        """Have it written, after what is being written; nobody waits for that here."""
        with self._lock:
            self._next = copy
            if self._will_look and self.is_busy:
                return
            self._will_look = True
        thread = threading.Thread(target=self._write_all, name="checkpoint")
        try:
            thread.start()
        except RuntimeError:  # no more threads: none are left, or Python, from 3.12 on, is ending
            self._write_all()
        else:
            self._thread = thread

    def wait(self) -> None:
        """Until all that was given is safe, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._write_all()  # nothing, unless an error that nobody expected has ended the thread

    def _write_all(self) -> None:
        while True:
            with self._lock:
                copy, self._next = self._next, None
                self._will_look = copy is not None
            if copy is None:
                return
            self._write(copy)
            del copy  # it is not to be there beside the next two


class Beside:
    """Does pieces of work beside the training, which has the processor first.

    That needs a thread of low priority, which Linux alone has, and which not everybody may raise
    again. So one gets a piece after the other; once somebody waits for what they are of, those that
    follow are done by the thread that has them. What holds Python's lock for long is no such piece:
    the training would wait for it until that thread has its turn.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "beside", initializer=_give_way)
        self._num_waiting = 0

    def run(self, work: Callable[[], Result]) -> Result:
        """Do one piece, of a few milliseconds, and give what comes out of it."""
        if self._num_waiting or sys.platform != "linux":
            return work()
        try:
            future = self._threads.submit(work)
        except RuntimeError:  # no more threads
            return work()
        return future.result()

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """While somebody waits for what is done here."""
        self._num_waiting += 1
        try:
            yield
        finally:
            self._num_waiting -= 1


def _give_way() -> None:
    with suppress(OSError):  # a sandbox may refuse it
        os.nice(NICENESS)
