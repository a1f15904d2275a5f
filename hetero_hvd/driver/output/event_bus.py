"""The history of a run as it happens: one stream for all who record, export or show it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hetero_hvd.messages import Event

logger = logging.getLogger(__name__)

Observer = Callable[[float, Event], None]
"""Called with the time of an event, seconds since 1970, and the event. Must not block."""


class EventBus:
    """Hands every event to all observers, in order. Used in the loop's thread."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._failed: set[Observer] = set()

    def subscribe(self, observer: Observer) -> None:
        """Hand it every event from now on."""
        self._observers.append(observer)

    def publish(self, event: Event) -> None:
        """Hand an event to all; an observer that cannot write any more hears no more.

        Any other error of an observer is logged once: it only watches, and the run goes on.
        """
        now_seconds = time.time()
        for observer in tuple(self._observers):
            try:
                observer(now_seconds, event)
            except OSError as error:
                logger.warning("an observer of the run is left out from now on: %s", error)
                self._observers.remove(observer)
            except Exception:
                if observer not in self._failed:
                    self._failed.add(observer)
                    logger.exception(
                        "an observer of the run has failed at %s", type(event).__name__
                    )
