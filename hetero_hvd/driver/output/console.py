"""What the workers print: prefixed on the driver's standard output, and kept in files.

No worker ever waits for a slow terminal: a thread writes, its queue is bounded, and what does not
fit is dropped and counted. The files have all of it, up to their limit.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from hetero_hvd.core.printable import printable
from hetero_hvd.core.view.meanings import Meaning, Words
from hetero_hvd.driver.output.pulse import Look, Pulse
from hetero_hvd.driver.output.signs import SignFilter
from hetero_hvd.driver.output.split_lines import LineSplitter
from hetero_hvd.driver.output.terminal import Terminal, TerminalStyle, plain
from hetero_hvd.kept_file import KeptFile
from hetero_hvd.probes.kernel.processes import DEAD

MAX_QUEUED_LINES = 10_000
TAIL_LINES = 40
MAX_SAMPLES = 4
MAX_LOG_BYTES = 32 * 2**20
"""Of a log file; what came before it is kept up to as much again."""

_REDRAW = "draw the status anew"
"""Known by its identity: no line is this one."""

AsJson = Callable[[bytes], tuple[bytes, str]]


class Console:
    """Lines on standard output, written by a thread of its own.

    Args:
        stream: Where to; standard output by default.
        style: How they are shown.
        max_lines: Lines that may wait; more are dropped, with a notice of how many.

    Attributes:
        style: See above.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        style: TerminalStyle | None = None,
        max_lines: int = MAX_QUEUED_LINES,
    ) -> None:
        self.style = style or TerminalStyle()
        self._stream = stream or sys.stdout  # None: it is closed
        self._lines: queue.Queue[tuple[str, Meaning] | None] = queue.Queue(max_lines)
        self._status: list[Words] = []
        self._is_due = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()

    def say(self, line: str, meaning: Meaning = "note", /) -> None:
        """Show a line, at once or never; does not block. What is in it stays one line."""
        if not self.style.shows(meaning):
            return
        try:
            self._lines.put_nowait((printable(line, keeps_colours=True), meaning))
        except queue.Full:
            self._dropped += 1

    def show_status(self, pieces: list[Words]) -> None:
        """Show how it goes, below all lines, until something else is shown there."""
        pieces = plain(pieces)
        if not self.style.is_live or not (pieces or self._status):
            return
        self._status = pieces
        if self._is_due:  # one that waits is enough, however slow the terminal is
            return
        self._is_due = True
        try:
            self._lines.put_nowait((_REDRAW, "note"))
        except queue.Full:  # it is drawn behind the next line
            self._is_due = False

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Wait until the lines are written, but not longer than the timeout."""
        try:
            self._lines.put(None, timeout=timeout_seconds)
        except queue.Full:
            return
        self._thread.join(timeout_seconds)

    def _write(self) -> None:
        try:
            if self._stream is not None:
                self._write_to(self._stream)
                return
        except (OSError, ValueError):  # nobody reads any more; the training goes on
            _silence(self._stream)
        while self._lines.get() is not None:
            pass

    def _write_to(self, stream: TextIO) -> None:
        terminal = Terminal(stream, self.style)
        while (item := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                terminal.line(f"[{dropped} lines dropped here: the output is too slow]", "warning")
            if item[0] is _REDRAW:
                self._is_due = False
            else:
                terminal.line(*item)
            if self._lines.empty():
                terminal.status(self._status)
                terminal.flush()
        terminal.erase()
        terminal.flush()


def _silence(stream: TextIO | None) -> None:
    """Let what the stream still holds go nowhere: Python would fail to write it at its end."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]


class WorkerOutput:
    """The output of one slot's processes, one after the other.

    Attributes:
        tail: The last lines, for the report of a worker that did not start.
        is_shown: Whether lines go to the console as well as to the file.
        known_line: One that was shown and is not again; None: there is none.
        pulse: What the supervisor has told of the running process.
        samples: What it has told of the node, and nobody has taken yet, oldest first.

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
        self.known_line: str | None = None
        self._held: list[str] | None = None
        self._console = console
        self._prefix = prefix
        self._as_json = as_json
        self._lines = LineSplitter(self._show)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = KeptFile(path, self._say, max_bytes=MAX_LOG_BYTES).touch()
        self._signs = SignFilter()
        self.pulse = Pulse()
        self.samples: deque[bytes] = deque(maxlen=MAX_SAMPLES)
        self._on_death: Callable[[], None] = lambda: None

    def feed(self, data: bytes) -> None:
        """Take in what a process has written."""
        data, signs = self._signs.feed(data)
        now_seconds = time.monotonic()
        self.samples.extend(signs.samples)
        for state, own_seconds, all_seconds in signs.looks:
            if state == DEAD:
                self._on_death()
                continue
            self.pulse.told(
                Look(
                    at_seconds=now_seconds,
                    state=state,
                    own_seconds=own_seconds,
                    all_seconds=all_seconds,
                )
            )
        if data:
            self._take(data)

    def tell_death(self, on_death: Callable[[], None]) -> None:
        """Have this called when the running process dies, if that is known before it has ended."""
        self._on_death = on_death

    def _take(self, data: bytes) -> None:
        if self._as_json is None:
            self._file.append(data)
        self._lines.feed(data)

    def flush(self) -> None:
        """Show what came without an end of line; the process has ended."""
        if rest := self._signs.flush():
            self._take(rest)
        self._lines.flush()
        self._held = None
        self.pulse = Pulse()
        self._on_death = lambda: None

    def hold(self) -> None:
        """Keep lines back until it is clear whether they are worth showing, or the process ends."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Show what was kept back."""
        held, self._held = self._held or [], None
        for text in held if self.is_shown else ():
            self._console.say(self._prefix + text, "output")

    def drop(self) -> None:
        """Show nothing more, and not what was kept back."""
        self.is_shown = False
        self._held = None

    def close(self) -> None:
        """Close the file."""
        self.flush()
        self._file.close()

    def _say(self, line: str) -> None:
        self._console.say(line)

    def _show(self, line: bytes) -> None:
        if self._as_json is None:
            text = line.decode(errors="replace")
        else:
            record, text = self._as_json(line)
            self._file.append(record)
        text = text.rstrip("\r").rpartition("\r")[2]  # what a progress bar ended with
        self.tail.append(text)
        if self._held is not None and len(self._held) < MAX_QUEUED_LINES:
            self._held.append(text)
        elif self._held is None and self.is_shown and text != self.known_line:
            self._console.say(self._prefix + text, "output")
