"""A program on a terminal of a given size, and what a person sees there."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self


class OnTerminal:
    """A program whose terminal is emulated by pyte.

    Args:
        words: Program and arguments.
        columns: Of the terminal.
        lines: Of the terminal.
        environment: Of the program, whole; None: of this process, and what suits the terminal.
        folder: In which it works; None: in that of this process.
        has_echo: Whether what is typed is to be seen, as a shell wants it.

    Attributes:
        process: The program.
        raw: All that it has written.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        columns: int = 100,
        lines: int = 24,
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
        has_echo: bool = False,
    ) -> None:
        import pyte  # noqa: PLC0415 - for this alone

        self._screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._end, theirs = os.openpty()
        self._set_size(columns, lines)
        if not has_echo:
            mode = termios.tcgetattr(theirs)
            mode[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, mode)
        given = {**os.environ, "TERM": "xterm-256color"} if environment is None else environment
        sizes = {"COLUMNS", "LINES"}  # readline leaves them where pytest itself has no terminal
        self.process = subprocess.Popen(
            words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={name: value for name, value in given.items() if name not in sizes},
            cwd=folder,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - an ioctl takes no lock
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._end >= 0:
            os.close(self._end)

    @property
    def shown(self) -> list[str]:
        """The lines that are to be seen, without the spaces behind them."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def cells(self) -> list[list[tuple[str, str, bool]]]:
        """The lines that are to be seen: of each letter, it, its colour, and whether it is bold."""
        columns = range(self._screen.columns)
        lines = [self._screen.buffer[y] for y in range(self._screen.lines)]
        return [[(line[x].data, str(line[x].fg), line[x].bold) for x in columns] for line in lines]

    @property
    def text(self) -> str:
        """All lines, also those that have left the screen above."""
        above = [
            "".join(line[x].data for x in range(self._screen.columns))
            for line in self._screen.history.top
        ]
        return "\n".join([*(line.rstrip() for line in above), *self.shown])

    @property
    def last(self) -> str:
        """The last line that is not empty."""
        return next((line for line in reversed(self.shown) if line), "")

    def colour_of(self, words: str) -> str:
        """Of the first letter of words that are to be seen."""
        for y, line in enumerate(self._screen.display):
            if (x := line.find(words)) >= 0:
                return str(self._screen.buffer[y][x].fg)
        raise AssertionError(f"{words!r} is not to be seen:\n{self.text}")

    def resize(self, columns: int, lines: int) -> None:
        """As a person does with the corner of a window."""
        self._set_size(columns, lines)
        self._screen.resize(lines, columns)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._end, keys.encode())

    def until(self, is_so: Callable[[Self], object], timeout_seconds: float = 60.0) -> None:
        """Look until something is to be seen.

        Raises:
            AssertionError: It is not, or the program has ended before.
        """
        deadline = time.monotonic() + timeout_seconds
        while not is_so(self):
            if time.monotonic() > deadline or not self._read(0.05):
                if is_so(self):
                    return
                raise AssertionError(f"not to be seen:\n{self.text}")

    def is_there(self, seconds: float) -> bool:
        """Take in what comes in that time; False: the program has ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._read(left):
                return False
        return True

    def close(self) -> None:
        """As a person does who closes the window: SIGHUP comes, and nobody reads any more."""
        os.close(self._end)
        self._end = -1

    def wait(self, timeout_seconds: float = 60.0) -> int:
        """Until the program has ended; gives its exit code."""
        deadline = time.monotonic() + timeout_seconds
        while self._read(0.05):
            if time.monotonic() > deadline:
                raise AssertionError(f"it does not end:\n{self.text}")
        return self.process.wait(timeout_seconds)

    def _read(self, seconds: float) -> bool:
        """Take in what comes in that time; False: nothing comes any more."""
        if not select.select([self._end], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._end, 65536)
        except OSError:  # the other end is closed
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def _take_terminal() -> None:
    """Make it the one of this session, so that Ctrl-C reaches the program."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
