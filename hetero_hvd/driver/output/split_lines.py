"""A process's output, line by line."""

from __future__ import annotations

from collections.abc import Callable


class LineSplitter:
    """Puts the pieces together in which the output arrives.

    Args:
        take: Called with each line, without its end.
        max_bytes: A longer line comes in parts.
    """

    def __init__(self, take: Callable[[bytes], None], *, max_bytes: int = 65_536) -> None:
        self._take = take
        self._max_bytes = max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take in what a process has written."""
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            self._take(line)
        if len(self._rest) > self._max_bytes:
            self.flush()

    def flush(self) -> None:
        """Pass on what came without an end of line."""
        if self._rest:
            line, self._rest = self._rest, b""
            self._take(line)
