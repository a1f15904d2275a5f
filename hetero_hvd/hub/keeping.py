"""Deletes samples that are too old or too many; tells of sessions that lose some before it does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from hetero_hvd.core.recording.retention import Retention, losing
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.hub.index import FleetMark
from hetero_hvd.hub.store import SampleStore

logger = logging.getLogger(__name__)


class StoreKeeping:
    """Keeps a store within its limits.

    Args:
        store: Of the hub.
        retention: Its limits.
        unwritten: Gives the sessions that have no folder: those with one lose nothing.
    """

    def __init__(
        self,
        store: SampleStore,
        retention: Retention,
        unwritten: Callable[[], Iterable[RecordingSession]],
    ) -> None:
        self._store = store
        self._retention = retention
        self._unwritten = unwritten
        self._told: set[str] = set()

    def look(self) -> None:
        """Delete what is due; call it now and then, in any thread."""
        segments = self._store.index.segments()
        now = self._store.now_microseconds()
        self._tell(losing(self._unwritten(), self._retention.going_soon(segments, now)), now)
        going = self._retention.going(segments, now)
        self._tell(losing(self._unwritten(), going), now)
        for segment in going:
            self._store.delete_segment(segment.number)
        if going:
            logger.info("%d segments are deleted, as --keep says", len(going))

    def _tell(self, sessions: list[RecordingSession], now: int) -> None:
        for session in sessions:
            if session.name not in self._told:
                self._told.add(session.name)
                words = (
                    f"session {session.name} loses its first samples within a day, as --keep says; "
                    f"hetero-hvd record cut {session.name} writes it"
                )
                logger.warning("%s", words)
                self._store.index.mark(FleetMark(now, "", "retention", words))
