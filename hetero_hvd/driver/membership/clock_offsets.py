"""How far the workers' clocks are off, asked over their channels."""

from __future__ import annotations

import time
from collections.abc import Callable

from hetero_hvd.core.clock import ClockOffset, best, offset_of
from hetero_hvd.driver.output.console import Console
from hetero_hvd.messages import ClockAsked, ClockMeasured, ClockTold, FromDriver, WorkerId
from hetero_hvd.run.event_bus import EventBus

NUM_QUESTIONS = 5
"""The fastest counts: the others waited for a busy process at one of the ends."""

REPEAT_SECONDS = 300.0
WORTH_TELLING_SECONDS = 1.0
"""Nothing in a job depends on the clocks; people who lay logs side by side do."""


class ClockOffsets:
    """Asks each worker some times in a row. Used in the loop's thread only.

    Args:
        send: Sends a message to a worker, by its name as a Horovod host; False if it cannot.
        bus: Hears of each measurement.
        console: Is told of clocks that are far off, once for each node.
    """

    def __init__(
        self, send: Callable[[str, FromDriver], bool], bus: EventBus, console: Console
    ) -> None:
        self._send = send
        self._bus = bus
        self._console = console
        self._found: dict[str, list[ClockOffset]] = {}
        self._asked_at_seconds: dict[str, float] = {}
        self._told: set[str] = set()

    def ask(self, host: str) -> None:
        """Begin a series of questions."""
        self._found[host] = []
        self._asked_at_seconds[host] = time.monotonic()
        self._question(host)

    def ask_again(self, host: str) -> None:
        """Begin another series if the last one is old; call it as often as you like."""
        asked_at = self._asked_at_seconds.get(host)
        if asked_at is not None and time.monotonic() - asked_at >= REPEAT_SECONDS:
            self.ask(host)

    def told(self, host: str, worker: WorkerId, answer: ClockTold) -> None:
        """Take an answer; after the last one of a series it is known."""
        found = self._found.setdefault(host, [])
        found.append(
            offset_of(
                asked_at=answer.asked_at_seconds,
                received_at=answer.received_at_seconds,
                replied_at=answer.replied_at_seconds,
                heard_at=time.time(),
            )
        )
        if len(found) < NUM_QUESTIONS:
            self._question(host)
        elif len(found) == NUM_QUESTIONS:
            self._conclude(worker, best(found))

    def forget(self, host: str) -> None:
        """This worker is gone."""
        self._found.pop(host, None)
        self._asked_at_seconds.pop(host, None)

    def _question(self, host: str) -> None:
        self._send(host, ClockAsked(asked_at_seconds=time.time()))

    def _conclude(self, worker: WorkerId, offset: ClockOffset) -> None:
        self._bus.publish(
            ClockMeasured(
                worker=worker,
                offset_seconds=offset.seconds,
                uncertainty_seconds=offset.uncertainty_seconds,
            )
        )
        if offset.least_seconds >= WORTH_TELLING_SECONDS and worker.node not in self._told:
            self._told.add(worker.node)
            side = "ahead of" if offset.seconds > 0 else "behind"
            self._console.say(
                f"the clock of node {worker.node} is {abs(offset.seconds):.1f} s {side} the "
                "driver's; training does not mind, times in its logs are off: set up NTP"
            )
