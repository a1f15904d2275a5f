"""The thread that writes checkpoints beside the training: one after the other, and one may wait."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hetero_hvd.worker.recovery.checkpoints.store import CheckpointPart

NICENESS = 10
"""Of a thread beside the training: a tenth of what a thread of a step gets where both want one."""


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
        thread = started(self._write_all, name="checkpoint", gives_way=not copy.is_last)
        if thread is None:
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


def started(
    work: Callable[[], None], *, name: str, gives_way: bool = True
) -> threading.Thread | None:
    """A thread that works on a checkpoint; None: none can be started, so do the work here.

    None are left, or Python, from 3.12 on, is ending.

    Args:
        work: What it does.
        name: Of the thread.
        gives_way: Whether the training goes on meanwhile, and has the processor first.
    """

    def run() -> None:
        if gives_way and sys.platform == "linux":  # elsewhere it would be the whole process
            os.nice(NICENESS)
        work()

    thread = threading.Thread(target=run, name=name)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
