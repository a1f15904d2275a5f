"""What SIGINT, SIGTERM and SIGHUP do to a command: at every moment an orderly end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, Self, TypeVar

from hetero_hvd.exit_codes import SIGNALLED

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The last one comes when the terminal is closed; under nohup(1) it is ignored, and stays so."""


class Startable(Protocol):
    """What a command leaves behind unless it is closed, also after a start that failed."""

    def start(self) -> None:
        """Make it."""

    def close(self) -> None:
        """Leave nothing of it."""


Started = TypeVar("Started", bound=Startable)


class Termination:
    """Takes these signals while it is entered. For the main thread.

    Before the job's loop hears of them the first one is raised, KeyboardInterrupt or SystemExit, so
    that whoever has begun something ends it. While that goes on, and after the loop, they wait for
    nothing more: the command is ending already.

    Attributes:
        number: Of the first signal; 0: none has come.
    """

    def __init__(self) -> None:
        self.number = 0
        self._listener: Callable[[int], object] | None = None
        self._is_ending = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """From now on."""
        is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        numbers = [each for each in NUMBERS if each != signal.SIGHUP or not is_kept]
        self._before = {number: signal.signal(number, self._came) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        """They do again what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def keeping(self, one: Started) -> Iterator[Started]:
        """Start it, and close it whatever comes; no signal interrupts that."""
        try:
            try:
                one.start()
                yield one
            finally:
                self._is_ending = True
        finally:
            one.close()

    @contextmanager
    def told_to(self, listener: Callable[[int], object]) -> Iterator[None]:
        """Have the running loop call it with the number of each signal; after that, all is over."""
        loop = asyncio.get_running_loop()
        self._listener = lambda number: loop.call_soon_threadsafe(listener, number)
        try:
            yield
        finally:
            self._is_ending = True
            self._listener = None

    def _came(self, number: int, _: FrameType | None) -> None:
        self.number = self.number or number
        if self._listener is not None:
            self._listener(number)
        elif not self._is_ending:
            self._is_ending = True
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(SIGNALLED + number)
