"""Deletes samples that are too old or too many, and what is about those that are gone.

Sessions that lose some are told of before that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from hetero_hvd.core.recording.retention import (
    NOTICE_SECONDS,
    Retention,
    StoredSegment,
    forgotten,
    losing,
)
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.hub.storage.index import FleetMark
from hetero_hvd.hub.storage.store import SampleStore

logger = logging.getLogger(__name__)


class StoreKeeping:
    """Keeps a store within its limits.

    Args:
        store: Of the hub.
        retention: Its limits.
        unwritten: Gives the sessions that have no folder: those with one lose nothing.
        tell: Is told the name of a session that is about to lose samples, and that in words.
        forget: Is told the names of sessions that are there no more.
    """

    def __init__(
        self,
        store: SampleStore,
        retention: Retention,
        unwritten: Callable[[], Iterable[RecordingSession]],
        tell: Callable[[str, str], None] = lambda *_: None,
        forget: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._retention = retention
        self._unwritten = unwritten
        self._tell_people = tell
        self._forget_sessions = forget
        self._told: set[str] = set()

    def look(self) -> None:
        """Delete what is due; call it now and then, in any thread.

        Raises:
            OSError: The disk refuses that.
        """
        sessions = list(self._unwritten())
        if self._retention == Retention() and not any(each.has_limits for each in sessions):
            return
        named = {node for each in self._store.index.sessions() for node in each.nodes}
        segments = self._store.index.segments(named.union(*(each.nodes for each in sessions)))
        now = self._store.now_microseconds()
        soon = self._retention.going(segments, sessions, now, ahead_seconds=NOTICE_SECONDS)
        untold = [each for each in sessions if each.name not in self._told]
        self._tell(losing(untold, soon), now)
        going = self._retention.going(segments, sessions, now)
        for segment in going:
            self._store.delete_segment(segment.number)
        if going:
            self._store.forget_gone()
            logger.info("%d segments are deleted, as --keep says", len(going))
        self._forget([each for each in segments if each not in going])

    def _forget(self, segments: list[StoredSegment]) -> None:
        """Sessions and marks that are about nothing that is kept."""
        if not segments:
            return
        index = self._store.index
        names = [each.name for each in forgotten(index.sessions(), segments)]
        index.forget(names, min(each.begin for each in segments))
        self._forget_sessions(names)
        self._told.difference_update(names)  # another one may get the name
        if names:
            logger.info("forgotten, as nothing of their time is kept: %s", ", ".join(names))

    def _tell(self, sessions: list[RecordingSession], now: int) -> None:
        for session in sessions:
            self._told.add(session.name)
            whose = "its own" if session.has_limits else "the hub's"
            words = (
                f"session {session.name} loses its first samples within a day, as {whose} "
                f"--keep says, and is forgotten with its last ones; "
                f"hetero-hvd record cut {session.name} writes it"
            )
            logger.warning("%s", words)
            self._tell_people(session.name, words)
            with suppress(OSError):  # a full disk: to delete makes room
                self._store.index.mark(FleetMark(now, "", "retention", words))
