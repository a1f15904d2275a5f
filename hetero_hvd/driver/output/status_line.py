"""The last line on the terminal of `hetero-hvd run`: how the job goes, and who waits for what."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hetero_hvd.core.step_table import Observed
from hetero_hvd.core.view.run_status import RunStatus
from hetero_hvd.driver.output.console import Console


class StatusLine:
    """Draws it; used in the loop's thread.

    Args:
        console: Where; if that has no such line nothing is done.
        waits: Gives at a time, monotonic clock, for each worker what keeps it from training; None:
            nothing does.
    """

    def __init__(
        self, console: Console, waits: Callable[[float], Mapping[str, str | None]]
    ) -> None:
        self._console = console
        self._waits = waits
        self._status = RunStatus()

    @property
    def is_shown(self) -> bool:
        """Whether there is such a line."""
        return self._console.style.is_live

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus."""
        self._status.observe(time.monotonic(), event)

    def look(self) -> None:
        """Draw it anew. Call it often."""
        if self.is_shown:
            now_seconds = time.monotonic()
            self._console.show_status(self._status.words(now_seconds, self._waits(now_seconds)))
