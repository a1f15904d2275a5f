"""The last line on the terminal of `hetero-hvd run`: how the job goes, and who waits for what."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from hetero_hvd.core.step_table import Observed
from hetero_hvd.core.view.run_status import RunStatus
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.workers.slot import Slot


class StatusLine:
    """Draws it; used in the loop's thread.

    Args:
        console: Where; if that has no such line nothing is done.
        slots: Gives the workers' places.
    """

    def __init__(self, console: Console, slots: Callable[[], Iterable[Slot]]) -> None:
        self._console = console
        self._slots = slots
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
            waits = {str(slot.worker): _wait_of(slot, now_seconds) for slot in self._slots()}
            self._console.show_status(self._status.words(now_seconds, waits))


def _wait_of(slot: Slot, now_seconds: float) -> str | None:
    """What keeps a worker from training; None: nothing, or it is not wanted."""
    if slot.ready is not None or not slot.is_wanted:
        return None
    if slot.num_refusals:
        return "waiting for a free device"
    if slot.process is None:
        return "waiting to be started"
    is_active = slot.is_starting(now_seconds)
    if not slot.output.pulse.has_answered:
        return f"waiting for {'the process' if slot.node.is_local else slot.node.launcher}"
    return "loading the script" if is_active else "waiting in the script"
