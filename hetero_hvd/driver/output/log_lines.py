"""What is logged, on the terminal as well, for who has asked for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hetero_hvd.core.view.meanings import Meaning
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.output.json_logs import EVENTS

OURS = "hetero_hvd"


class _ConsoleHandler(logging.Handler):
    """Shows each record as a line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        if record.name == EVENTS:  # which are shown already, in other words
            return
        is_bad = record.levelno >= logging.WARNING
        meaning: Meaning = "warning" if is_bad else "step"
        self._console.say(f"{record.levelname.lower()}: {record.getMessage()}", meaning)


@contextmanager
def console_log(console: Console) -> Iterator[None]:
    """Show what we log, if `--verbose` asks for it."""
    if console.style.verbosity != "verbose":
        yield
        return
    ours, handler = logging.getLogger(OURS), _ConsoleHandler(console)
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)
