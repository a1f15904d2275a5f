"""The nodes that the hub knows and the sessions that go on; what changes is kept as marks."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hetero_hvd.core.recording.health import FleetHealth, HealthChange
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.errors import UserError
from hetero_hvd.hub.index import FleetMark
from hetero_hvd.hub.store import SampleStore

logger = logging.getLogger(__name__)


class Fleet:
    """Who is there, and what is recorded. Used in the loop's thread only.

    Args:
        store: Of the hub.
        clock: Monotonic.
    """

    def __init__(self, store: SampleStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        known = {state.node for state in store.streams().values()}
        self.health = FleetHealth(known, clock())
        self._sessions = {session.name: session for session in store.index.sessions()}

    @property
    def sessions(self) -> list[RecordingSession]:
        """All, by their begin."""
        return list(self._sessions.values())

    def heard(self, node: str) -> None:
        """Samples of a node came."""
        if change := self.health.heard(node, self._clock()):
            self._keep([change])

    def look(self) -> None:
        """Find those that are silent; call it every second or so."""
        self._keep(self.health.silent(self._clock()))

    def session(self, name: str) -> RecordingSession:
        """One by its name.

        Raises:
            UserError: There is none.
        """
        if name not in self._sessions:
            there = ", ".join(self._sessions) or "none"
            raise UserError(f"session {name!r}: there is none of that name; there are: {there}")
        return self._sessions[name]

    def put(self, session: RecordingSession, *, is_new: bool) -> None:
        """Keep a session.

        Raises:
            UserError: There is another one of its name.
        """
        if is_new and session.name in self._sessions:
            raise UserError(
                f"session {session.name!r}: there is one of that name already; choose another"
            )
        self._store.index.put_session(session)
        self._sessions[session.name] = session

    def _keep(self, changes: list[HealthChange]) -> None:
        now = self._store.now_microseconds()
        marks = []
        for change in changes:
            seconds = change.silent_seconds
            if change.is_healthy:
                words = f"is heard again after {seconds:.0f} s"
                marks.append(FleetMark(now, change.node, "healthy", words))
            else:
                at = now - round(seconds * MICROSECONDS)
                words = "is not heard any more"
                marks.append(FleetMark(at, change.node, "unhealthy", words))
            logger.warning("node %s %s", change.node, words)
        if marks:
            self._store.index.mark(*marks)
