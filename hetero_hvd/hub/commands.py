"""What people order of the hub: start and stop sessions, cut recordings, list what is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hetero_hvd.core.names import NODE
from hetero_hvd.core.recording.sessions import DEFAULT_EVERY_SECONDS, RecordingSession
from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.errors import UserError
from hetero_hvd.hub.announced_nodes import AnnouncedNodes
from hetero_hvd.hub.fleet import Fleet
from hetero_hvd.hub.runs import HubRuns, recorded_items
from hetero_hvd.hub.storage.store import SampleStore
from hetero_hvd.run.recordings.damaged_files import damaged_files
from hetero_hvd.run.recordings.folder import (
    RecordingFacts,
    RecordingMark,
    finish_interrupted,
    write_recording,
)
from hetero_hvd.run.recordings.frames import RecordedFrame
from hetero_hvd.run.web.scraping.targets import Target, node_target

RECORDINGS = "recordings"
LATE_LOOK_SECONDS = 0.1
Arguments = dict[str, Any]
Number = TypeVar("Number", int, float)


class HubCommands:
    """Carries out orders. Used in the loop's thread only.

    Args:
        store: Of the hub.
        fleet: Its nodes and sessions.
        announced: Nodes that announce themselves to the hub; None: no hub runs.
        late_seconds: So long a session that is stopped waits for samples that are under way.
    """

    def __init__(
        self,
        store: SampleStore,
        fleet: Fleet,
        announced: AnnouncedNodes | None = None,
        *,
        late_seconds: float = 0.0,
    ) -> None:
        self._store = store
        self._announced = announced
        self._fleet = fleet
        self._late_seconds = late_seconds
        self._runs = HubRuns(store.index, store.now_seconds, time.monotonic)
        self._actions: dict[str, Callable[[Arguments], Awaitable[Any]]] = {
            "start": self._start,
            "stop": self._stop,
            "status": self._status,
            "cut": self._cut,
            "recover": self._recover,
            "report": self._runs.take,
            "runs": self._list_runs,
            "targets": self._list_targets,
        }
        if announced is not None:
            self._actions["adverts"] = announced.told
        finish_interrupted(store.folder / RECORDINGS)

    async def act(self, name: str, arguments: Arguments) -> Any:  # noqa: ANN401 - of JSON's kinds
        """Carry out an order; gives what came of it.

        Raises:
            UserError: It cannot be done.
            OSError: The disk does not take it.
        """
        if name not in self._actions:
            there = ", ".join(self._actions)
            raise UserError(f"{name!r} is no command of this hub; there are {there}")
        try:
            return await self._actions[name](arguments)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{name}: is not understood: {error}") from error

    async def _start(self, arguments: Arguments) -> Any:  # noqa: ANN401
        now = self._store.now_microseconds()
        session = RecordingSession(
            name=self._name(arguments),
            from_microseconds=_time(arguments.get("from", 0.0), now),
            nodes=_nodes(arguments),
            every_seconds=float(arguments.get("every_seconds") or DEFAULT_EVERY_SECONDS),
            keep_seconds=_number(arguments.get("keep_seconds"), float),
            keep_bytes=_number(arguments.get("keep_bytes"), int),
        )
        await self._put_new(session)
        return self._shown(session) | self._missing(session)

    async def _put_new(self, session: RecordingSession) -> None:
        """Keep a session; the recording of a forgotten one of its name is not written over.

        Raises:
            UserError: There is such a recording, or session.
            OSError: The disk does not take it.
        """
        is_known = session.name in [each.name for each in self._fleet.sessions]
        if not is_known and self._folder(session.name).exists():
            raise UserError(
                f"session {session.name!r}: there is a recording of that name already; choose "
                "another"
            )
        await self._fleet.put(session, is_new=True)

    async def _stop(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """End a session, or the one that goes on, and write its folder."""
        name = arguments.get("name")
        going_on = self._fleet.going_on
        if name is None:
            if len(going_on) != 1:
                names = ", ".join(each.name for each in going_on) or "none"
                raise UserError(f"stop: say which session; those that go on: {names}")
            name = going_on[0].name
        session = self._fleet.session(str(name))
        if session.until_microseconds is not None:
            raise UserError(f"session {name!r}: has ended already; record cut {name} writes it")
        now = self._store.now_microseconds()
        ended = msgspec.structs.replace(session, until_microseconds=now)
        await self._fleet.put(ended, is_new=False)
        await self._await_late(ended)
        return await self._write(ended)

    async def _await_late(self, session: RecordingSession) -> None:
        """Let come in what its nodes have sampled before its end: one sample later shows it."""
        deadline = time.monotonic() + self._late_seconds
        end = session.until_microseconds or 0
        while time.monotonic() < deadline:
            newest: dict[str, int] = {}
            for state in self._store.streams().values():
                newest[state.node] = max(state.newest, newest.get(state.node, 0))
            if not any(
                at < end and self._fleet.health.is_healthy(node)
                for node, at in newest.items()
                if not session.nodes or node in session.nodes
            ):
                return
            await asyncio.sleep(LATE_LOOK_SECONDS)

    async def _cut(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Write a part of the stream as a recording: a session of that name, or a new one."""
        name = self._name(arguments)
        begin, end = arguments.get("from"), arguments.get("to")
        if begin is None and end is None:
            return await self._write(self._fleet.session(name))
        now = self._store.now_microseconds()
        first = _time(begin, now) if begin is not None else 0
        session = RecordingSession(
            name=name,
            from_microseconds=first,
            until_microseconds=_time(end, now) if end is not None else max(now, first),
            nodes=_nodes(arguments),
        )
        if first > now:
            raise UserError(
                f"cut {name}: begins in the future, of which nothing is stored; give a begin that "
                "is before now"
            )
        if (session.until_microseconds or 0) > now:  # nothing is known of what comes
            session = msgspec.structs.replace(session, until_microseconds=now)
        await self._put_new(session)
        return await self._write(session)

    async def _recover(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """List what a crash may have left; or go on with a session, or write it as it is."""
        if (name := arguments.get("name")) is None:
            return {
                "sessions": [self._shown(session) for session in self.unwritten()],
                "streams": self._streams(),
                "damaged": [str(path) for path in damaged_files(self._store.folder)],
            }
        session = self._fleet.session(str(name))
        if arguments.get("resume"):
            again = msgspec.structs.replace(session, until_microseconds=None)
            await self._fleet.put(again, is_new=False)
            return self._shown(again)
        return await self._write(session)

    async def _status(self, _arguments: Arguments) -> Any:  # noqa: ANN401
        return {
            "hub": self._store.index.identity,
            "now_unix_seconds": self._store.now_seconds(),
            "sessions": [self._shown(session) for session in self._fleet.sessions],
            "nodes": self._nodes(),
            "streams": self._streams(),
            "duplicates": self._store.num_duplicates,
            "from_the_future": self._store.num_ahead,
            "damaged_files": self._store.num_damaged,
            **({} if self._announced is None else self._announced.facts),
        }

    async def _list_runs(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """All runs and recordings; or one with its marks, None where there is none."""
        wanted = arguments.get("id")
        if wanted is not None and (run := await self._runs.item(str(wanted))) is not None:
            return run
        items = await asyncio.to_thread(recorded_items, self._store.folder / RECORDINGS)
        if wanted is None:
            return [*self._runs.items(), *items]
        return next((each | {"marks": []} for each in items if each["id"] == wanted), None)

    async def _list_targets(self, _arguments: Arguments) -> list[Target]:
        """What Prometheus should scrape: runs, and the exporters of agents that are announced."""
        exporters = {} if self._announced is None else self._announced.exporters()
        nodes = [node_target(url, name) for name, url in sorted(exporters.items())]
        return [*self._runs.targets(), *nodes]

    def unwritten(self) -> list[RecordingSession]:
        """Sessions without a folder."""
        return [s for s in self._fleet.sessions if not self._folder(s.name).exists()]

    def _nodes(self) -> list[Arguments]:
        found: dict[str, Arguments] = {}
        agents = self._store.nodes()
        for state in self._store.streams().values():
            node = found.setdefault(state.node, {"node": state.node, "samples": 0, "missing": 0})
            node["samples"] += state.num_samples
            node["missing"] += state.num_missing
            newest = max(node.get("newest_unix_seconds", 0.0), state.newest / MICROSECONDS)
            node["newest_unix_seconds"] = newest
            is_program = state.node not in agents  # which sends when it likes
            node["kind"] = "program" if is_program else "node"
            node["is_healthy"] = is_program or self._fleet.health.is_healthy(state.node)
            node["has_left"] = self._fleet.has_left(state.node)
            node["is_doubled"] = self._fleet.is_doubled(state.node)
        return [found[name] for name in sorted(found)]

    def _streams(self) -> list[Arguments]:
        return [
            {"stream": name, "node": s.node, "samples": s.num_samples, "missing": s.num_missing}
            for name, s in self._store.streams().items()
        ]

    def _shown(self, session: RecordingSession) -> Arguments:
        end = session.until_microseconds
        folder = self._folder(session.name)
        return {
            "name": session.name,
            "from_unix_seconds": session.from_microseconds / MICROSECONDS,
            "until_unix_seconds": None if end is None else end / MICROSECONDS,
            "nodes": list(session.nodes),
            "every_seconds": session.every_seconds,
            "keep_seconds": session.keep_seconds,
            "keep_bytes": session.keep_bytes,
            "folder": str(folder.absolute()) if folder.exists() else None,
            "notice": None if folder.exists() else self._fleet.notices.get(session.name),
        }

    def _name(self, arguments: Arguments) -> str:
        """Of a new session, with a number behind it if that is wanted and there is one already."""
        name = str(arguments["name"])
        taken = {session.name for session in self._fleet.sessions}
        if not arguments.get("is_numbered"):
            return name
        names = chain([name], (f"{name}-{n}" for n in count(2)))
        return next(n for n in names if n not in taken and not self._folder(n).exists())

    def _folder(self, name: str) -> Path:
        return self._store.folder / RECORDINGS / name

    async def _write(self, session: RecordingSession) -> Arguments:
        folder = self._folder(session.name)
        facts = await asyncio.to_thread(self._written, session, folder)
        return self._shown(session) | {
            "folder": str(folder.absolute()),
            "frames": facts.num_frames,
            "missing": facts.num_missing,
            **self._missing(session),
        }

    def _missing(self, session: RecordingSession) -> Arguments:
        """Its nodes of which nothing is heard now; of them those that were never heard of.

        Beside those there are all names that the hub knows: one of them may have been meant.
        """
        healthy = {node["node"]: node["is_healthy"] for node in self._nodes()}
        silent = sorted(n for n in session.nodes or healthy if not healthy.get(n, False))
        unknown = [node for node in silent if node not in healthy]
        known = {"known": list(healthy)} if unknown else {}
        return {"silent": silent, "unknown": unknown, **known}

    def _written(self, session: RecordingSession, folder: Path) -> RecordingFacts:
        now = self._store.now_microseconds()
        end = session.until_microseconds
        marks = [
            RecordingMark(
                at_unix_seconds=mark.at / MICROSECONDS,
                node=mark.node,
                kind=mark.kind,
                words=mark.words,
            )
            for mark in self._store.index.marks(session)
        ]
        return write_recording(
            folder,
            session,
            self._frames(session),
            until_microseconds=now if end is None else end,
            marks=marks,
        )

    def _frames(self, session: RecordingSession) -> Iterator[RecordedFrame]:
        for node, stream, recorded in self._store.frames(session):
            yield RecordedFrame(node, stream, recorded)


def _nodes(arguments: Arguments) -> tuple[str, ...]:
    nodes = tuple(map(str, arguments.get("nodes") or ()))
    for node in nodes:
        NODE.check("node", node)
    return nodes


def _number(value: Any, kind: Callable[[Any], Number]) -> Number | None:  # noqa: ANN401 - of JSON's kinds
    return None if value is None else kind(value)


def _time(seconds: object, now: int) -> int:
    """Seconds since 1970, or where they are not above 0, from now on, as microseconds."""
    value = round(float(str(seconds)) * MICROSECONDS)
    return value if value > 0 else max(0, now + value)
