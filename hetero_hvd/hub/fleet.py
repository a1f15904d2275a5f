"""The nodes that the hub knows and the sessions that go on; what changes is kept as marks.

The disk may be slow: whatever is written is written in another thread than the loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from hetero_hvd.core.recording.device_figures import GAP_INTERVALS
from hetero_hvd.core.recording.health import FleetHealth, HealthChange
from hetero_hvd.core.recording.sessions import MAX_EVERY_SECONDS, RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.errors import UserError
from hetero_hvd.hub.storage.index import HEALTHY, UNHEALTHY, FleetMark
from hetero_hvd.hub.storage.store import SampleStore

MAX_MARKS = 10_000
"""That wait for room on the disk."""

DOUBLED_SECONDS = GAP_INTERVALS * MAX_EVERY_SECONDS
"""So long after two agents of one name have taken turns both are there, at any rate of samples."""

GOODBYE = "has said good-bye"
"""Words of the mark of a node that is not heard for that reason."""

MAX_SHOWN = 100
MAX_NAMES = 20
"""Of sessions in a line for people: the newest."""

logger = logging.getLogger(__name__)


class Fleet:
    """Who is there, and what is recorded. Used in the loop's thread only, but for `note`, `forget`.

    Args:
        store: Of the hub.
        clock: Monotonic.

    Attributes:
        notices: Name of a session to what people are to know of it.
    """

    def __init__(self, store: SampleStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._doubled_at_seconds: dict[str, float] = {}
        self._left = set[str]()
        self.notices: dict[str, str] = {}
        self._marks: deque[FleetMark] = deque(maxlen=MAX_MARKS)
        self.health = FleetHealth(store.nodes(), clock(), self._silent_seconds())
        self._sessions = {session.name: session for session in store.index.sessions()}
        self._going_on = self._unended()

    def _silent_seconds(self) -> dict[str, float]:
        """Those of which an earlier hub has said that they are unhealthy, and for how long.

        It has also said of which of them a good-bye was heard.
        """
        everything = RecordingSession(name="all", from_microseconds=0)
        last = {
            mark.node: mark
            for mark in self._store.index.marks(everything)
            if mark.kind in (HEALTHY, UNHEALTHY)
        }
        self._left = {node for node, mark in last.items() if mark.words == GOODBYE}
        now = self._store.now_microseconds()
        return {
            node: (now - mark.at) / MICROSECONDS
            for node, mark in last.items()
            if mark.kind == UNHEALTHY
        }

    @property
    def sessions(self) -> list[RecordingSession]:
        """All, by their begin."""
        return list(self._sessions.values())

    @property
    def going_on(self) -> list[RecordingSession]:
        """Those that have no end yet: each batch asks for them, and thousands have ended."""
        return self._going_on

    def _unended(self) -> list[RecordingSession]:
        return [each for each in self._sessions.values() if each.until_microseconds is None]

    def lost_nodes(self) -> list[str]:
        """Nodes whose agents are not heard any more, and not just started anew."""
        now = self._clock()
        return [node for node in self._store.nodes() if self.health.is_silent(node, now)]

    def note(self, session: str, words: str) -> None:
        """Have people know something of a session."""
        self.notices[session] = words

    def forget(self, sessions: Iterable[str]) -> None:
        """Know nothing more of some sessions."""
        for name in sessions:
            self._sessions.pop(name, None)
            self.notices.pop(name, None)
        self._going_on = self._unended()

    def heard(self, node: str) -> None:
        """Samples of a node came."""
        if change := self.health.heard(node, self._clock()):
            self._keep([change])
        self._left.discard(node)

    def left(self, node: str) -> None:
        """A node has said good-bye: it is not there from now on, of which nobody is warned."""
        self._left.add(node)
        if change := self.health.left(node, self._clock()):
            self._keep([change])

    def has_left(self, node: str) -> bool:
        """Whether it is not heard because it has said good-bye."""
        return node in self._left and not self.health.is_healthy(node)

    def doubled(self, node: str) -> None:
        """Two agents of one name take turns; it is told once while they do."""
        if not self.is_doubled(node):
            logger.warning(
                "node %s: two agents of that name send samples, which are mixed in recordings; "
                "give one of them another --name",
                node,
            )
        self._doubled_at_seconds[node] = self._clock()

    def is_doubled(self, node: str) -> bool:
        """Whether two agents of one name send samples."""
        at_seconds = self._doubled_at_seconds.get(node)
        return at_seconds is not None and self._clock() - at_seconds <= DOUBLED_SECONDS

    async def look(self) -> None:
        """Find those that are silent, and keep what happened; call it every second or so."""
        self._keep(self.health.silent(self._clock()))
        marks = list(self._marks)
        if not marks:
            return
        self._marks.clear()
        try:
            await asyncio.to_thread(self._store.index.mark, *marks)
        except OSError:  # a full disk: they are kept when there is room
            self._marks.extendleft(reversed(marks))

    def session(self, name: str) -> RecordingSession:
        """One by its name.

        Raises:
            UserError: There is none.
        """
        if name not in self._sessions:
            there = ", ".join(list(self._sessions)[-MAX_NAMES:]) or "none"
            if len(self._sessions) > MAX_NAMES:
                there += f" and {len(self._sessions) - MAX_NAMES} before them"
            raise UserError(
                f"session {name[:MAX_SHOWN]!r}: there is none of that name; there are: {there}"
            )
        return self._sessions[name]

    async def put(self, session: RecordingSession, *, is_new: bool) -> None:
        """Keep a session.

        Raises:
            UserError: There is another one of its name.
            OSError: The disk does not take it.
        """
        if is_new and session.name in self._sessions:
            raise UserError(
                f"session {session.name!r}: there is one of that name already; choose another"
            )
        before = self._sessions.get(session.name)
        self._sessions[session.name] = session  # nobody else takes the name meanwhile
        try:
            await asyncio.to_thread(self._store.index.put_session, session)
        except BaseException:
            if before is None:
                del self._sessions[session.name]
            else:
                self._sessions[session.name] = before
            raise
        finally:
            self._going_on = self._unended()

    def _last_sample(self, node: str) -> int:
        """Time of the last sample of a node, which an earlier hub may have had of it."""
        found = (state.newest for state in self._store.streams().values() if state.node == node)
        return max(found, default=self._store.now_microseconds())

    def _keep(self, changes: list[HealthChange]) -> None:
        now = self._store.now_microseconds()
        for change in changes:
            seconds = change.silent_seconds
            if change.is_healthy:
                words = f"is heard again after {seconds:.0f} s"
                self._marks.append(FleetMark(now, change.node, HEALTHY, words))
            else:
                at = min(now - round(seconds * MICROSECONDS), self._last_sample(change.node))
                words = GOODBYE if change.node in self._left else "is not heard any more"
                self._marks.append(FleetMark(at, change.node, UNHEALTHY, words))
            level = logging.INFO if change.node in self._left else logging.WARNING
            logger.log(level, "node %s %s", change.node, words)
