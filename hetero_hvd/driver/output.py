"""What the workers print: prefixed on the driver's standard output, and kept in files.

No worker ever waits for a slow terminal: a thread writes, its queue is bounded, and what does not
fit is dropped and counted. The files are complete.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from hetero_hvd.driver.lines import LineSplitter

MAX_QUEUED_LINES = 10_000
TAIL_LINES = 40

AsJson = Callable[[bytes], tuple[bytes, str]]


class Console:
    """Lines on standard output, written by a thread of its own.

    Args:
        stream: Where to; standard output by default.
        max_lines: Lines that may wait; more are dropped, with a notice of how many.
    """

    def __init__(self, stream: TextIO | None = None, *, max_lines: int = MAX_QUEUED_LINES) -> None:
        self._stream = stream or sys.stdout
        self._lines: queue.Queue[str | None] = queue.Queue(max_lines)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """Show a line, at once or never; does not block."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Wait until the lines are written, but not longer than the timeout."""
        try:
            self._lines.put(None, timeout=timeout_seconds)
        except queue.Full:
            return
        self._thread.join(timeout_seconds)

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    self._stream.write(f"[{dropped} lines dropped here: the output is too slow]\n")
                self._stream.write(f"{line}\n")
                if self._lines.empty():
                    self._stream.flush()
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more; the training goes on
            while self._lines.get() is not None:
                pass


class WorkerOutput:
    """The output of one slot's processes, one after the other.

    Attributes:
        tail: The last lines, for the report of a worker that did not start.
        is_shown: Whether lines go to the console as well as to the file.

    Args:
        console: Where to show lines.
        path: The file.
        prefix: Of the lines shown.
        as_json: Makes of a line what the file gets, and what is shown; None: the file gets the
            output as it is.
    """

    def __init__(
        self, console: Console, path: Path, prefix: str, *, as_json: AsJson | None = None
    ) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.is_shown = True
        self._console = console
        self._prefix = prefix
        self._as_json = as_json
        self._lines = LineSplitter(self._show)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def feed(self, data: bytes) -> None:
        """Take in what a process has written."""
        if self._as_json is None:
            self._keep(data)
        self._lines.feed(data)

    def flush(self) -> None:
        """Show what came without an end of line."""
        self._lines.flush()

    def close(self) -> None:
        """Close the file."""
        self.flush()
        self._file.close()

    def _keep(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:  # a full disk must not stop the training
            self._console.say(f"{self._prefix}the log file cannot be written: {error}")

    def _show(self, line: bytes) -> None:
        if self._as_json is None:
            text = line.decode(errors="replace").rstrip("\r")
        else:
            record, text = self._as_json(line)
            self._keep(record)
        self.tail.append(text)
        if self.is_shown:
            self._console.say(self._prefix + text)
