"""The runs of the cluster, as their drivers tell of them; kept when the hub or a driver is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from platform import node
from typing import Any

import msgspec

from hetero_hvd.config.value_types import is_loopback
from hetero_hvd.core.printable import printable
from hetero_hvd.core.recording.runs import MAX_MARKS, RunMark, RunReport, page_parts
from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.errors import JobError, TryAgainError, UserError
from hetero_hvd.hub.storage.index import HubIndex
from hetero_hvd.run.recordings.folder import read_facts
from hetero_hvd.run.web.scraping.targets import Target, page_elsewhere, run_target

logger = logging.getLogger(__name__)

MAX_RUNS = 2000
"""Of which the one that was not heard of for longest makes room for a new one."""

SILENT_SECONDS = 30.0
"""After so long its driver is not there any more, as far as the hub knows."""

LAST_SCRAPE_SECONDS = 60.0
"""So long after its end the page of a run is listed for Prometheus, for which it waits."""

KEEP_SECONDS = 60.0
"""Between two writes of a run of which only the step has changed."""

LISTED_SECONDS = KEEP_SECONDS + SILENT_SECONDS
"""A run of which a report is kept that is older went on no more before this hub was started: what
has its port now is not to be sent the token of Prometheus."""


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run. Times are seconds since 1970, by the hub's clock.

    Attributes:
        id: See `RunStarted`.
        name: What the user calls it; its id if not at all.
        host: Name of the driver's machine.
        folder: Of the run, on that machine.
        url: Of its page, as its driver listens; None: it has none any more.
        nodes: Names of those that take part or may.
        started_at_unix_seconds: When it began.
        ended_at_unix_seconds: When it ended; None: it goes on, or nobody knows.
        exit_code: With which it ended.
        reason: Why it ended, in words.
        last_step: Index of the last step heard of; None: there was none.
        heard_at_unix_seconds: When its driver told of it last.
        next_mark: Number of the mark that comes next.
    """

    id: str
    name: str
    host: str
    folder: str
    url: str | None
    nodes: tuple[str, ...]
    started_at_unix_seconds: float
    ended_at_unix_seconds: float | None
    exit_code: int | None
    reason: str
    last_step: int | None
    heard_at_unix_seconds: float
    next_mark: int


class HubRuns:
    """Used in the loop's thread only; it writes in another one.

    Args:
        index: Of the store.
        now_seconds: The hub's clock.
        clock: Monotonic.
    """

    def __init__(
        self, index: HubIndex, now_seconds: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._index = index
        self._now_seconds = now_seconds
        self._clock = clock
        self._writing = asyncio.Lock()
        try:
            known = [msgspec.json.decode(facts, type=KnownRun) for facts in index.runs()]
        except msgspec.DecodeError as error:
            raise index.damaged(error) from error
        self._runs = {run.id: run for run in known}
        # A driver that goes on tells so before it is taken for silent.
        self._heard_at_seconds = dict.fromkeys(self._runs, clock())
        self._kept_at_seconds = dict.fromkeys(self._runs, clock())
        self._pages = {
            run.id: url
            for run in known
            if abs(now_seconds() - run.heard_at_unix_seconds) <= LISTED_SECONDS
            and (url := _page_of(run)) is not None
        }

    async def take(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A driver tells of its run.

        Raises:
            UserError: It is understood by nobody.
            OSError: The disk does not take it.
        """
        try:
            report = msgspec.convert(arguments, RunReport)
            if report.url is not None:
                page_parts(report.url)
        except (msgspec.ValidationError, ValueError) as error:
            raise UserError(f"report: is not understood: {error}") from error
        async with self._writing:
            next_mark = await self._take(report, self._now_seconds())
        return {"next_mark": next_mark}

    def items(self) -> list[dict[str, Any]]:
        """All, as the API shows them."""
        return [self._shown(run) for run in self._runs.values()]

    def targets(self) -> list[Target]:
        """The runs that Prometheus should scrape, those that have just ended among them.

        A page on the loopback of another machine is left out.
        """
        return [
            run_target(url, run_id)
            for run_id, url in self._pages.items()
            if self._may_be_scraped(self._runs[run_id], url)
        ]

    def _may_be_scraped(self, run: KnownRun, url: str) -> bool:
        silent_seconds = self._clock() - self._heard_at_seconds[run.id]
        is_over = run.ended_at_unix_seconds is not None
        is_here = run.host == node() or not is_loopback(page_parts(url).hostname or "")
        return is_here and silent_seconds <= (LAST_SCRAPE_SECONDS if is_over else SILENT_SECONDS)

    async def item(self, run_id: str) -> dict[str, Any] | None:
        """One of them with its marks; None: there is none."""
        run = self._runs.get(run_id)
        if run is None:
            return None
        marks = await asyncio.to_thread(self._index.run_marks, run_id)
        return self._shown(run) | {
            "marks": [
                {"at_unix_seconds": at / MICROSECONDS, "kind": kind, "text": text}
                for at, kind, text in marks
            ],
            "num_earlier_marks": run.next_mark - len(marks),
        }

    def _shown(self, run: KnownRun) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(run)
        del shown["next_mark"]
        is_silent = self._clock() - self._heard_at_seconds[run.id] > SILENT_SECONDS
        if run.ended_at_unix_seconds is not None:
            state = "ended"
        else:
            state = "vanished" if is_silent else "running"
        return shown | {
            "kind": "run",
            "state": state,
            "url": _page_of(run) if state == "running" else None,
        }

    async def _take(self, report: RunReport, now: float) -> int:
        known = self._runs.get(report.run_id)
        run = _run(report, known, now)
        begin = 0 if known is None else known.next_mark
        marks = [
            (number, round((now - report.seconds_ago(mark.at_seconds)) * MICROSECONDS), mark)
            for number, mark in enumerate(report.marks, report.first_mark)
            if number >= begin
        ]
        if known is not None:
            self._heard_at_seconds[run.id] = self._clock()
        forgotten = self._forgotten() if known is None else None
        if known is None or marks or self._is_due(run, known):
            await asyncio.to_thread(self._write, run, marks, forgotten)
            self._kept_at_seconds[run.id] = self._clock()
        if forgotten is not None:
            for table in (self._runs, self._heard_at_seconds, self._kept_at_seconds):
                del table[forgotten]
            self._pages.pop(forgotten, None)
        if known is None or run.ended_at_unix_seconds != known.ended_at_unix_seconds:
            logger.info(
                "run %s %s", run.id, f"has ended: {printable(run.reason)}" if known else "is there"
            )
        self._runs[run.id] = run
        if (url := _page_of(run)) is not None:
            self._pages[run.id] = url
        elif run.url is not None and known is None:
            logger.warning(
                "run %s is not listed for Prometheus: it listens on all addresses of a machine"
                " that has no name: %s",
                run.id,
                printable(f"{run.host!r}"),
            )
        self._heard_at_seconds[run.id] = self._clock()
        return run.next_mark

    def _is_due(self, run: KnownRun, known: KnownRun) -> bool:
        """Whether it is to be written."""
        same = msgspec.structs.replace(
            run, last_step=known.last_step, heard_at_unix_seconds=known.heard_at_unix_seconds
        )
        return same != known or self._clock() - self._kept_at_seconds[run.id] >= KEEP_SECONDS

    def _forgotten(self) -> str | None:
        """Which one makes room for another one; None: none has to.

        Raises:
            TryAgainError: All of them go on.
        """
        if len(self._runs) < MAX_RUNS:
            return None
        over = [
            shown for shown in map(self._shown, self._runs.values()) if shown["state"] != "running"
        ]
        if not over:
            raise TryAgainError(f"{MAX_RUNS} runs go on, which is the most")
        return str(min(over, key=lambda shown: shown["heard_at_unix_seconds"])["id"])

    def _write(
        self, run: KnownRun, marks: list[tuple[int, int, RunMark]], forgotten: str | None
    ) -> None:
        rows = [(number, at, mark.kind, mark.text) for number, at, mark in marks]
        oldest = run.next_mark - MAX_MARKS
        facts = msgspec.json.encode(run).decode()
        self._index.put_run(run.id, facts, rows, oldest_mark=oldest, forgotten=forgotten)


def recorded_items(place: Path) -> list[dict[str, Any]]:
    """The recordings that are written, in the form of runs.

    Args:
        place: Folder of all recordings.
    """
    found = []
    for path in sorted(place.glob("[!.]*/")):
        with suppress(JobError):  # it is none
            facts = read_facts(path)
            found.append(
                {
                    "id": f"recording:{facts.name}",
                    "name": facts.name,
                    "kind": "recording",
                    "state": "recorded",
                    "folder": str(path.absolute()),
                    "url": None,
                    "nodes": list(facts.nodes),
                    "started_at_unix_seconds": facts.from_unix_seconds,
                    "ended_at_unix_seconds": facts.until_unix_seconds,
                    "last_step": None,
                }
            )
    return found


def _page_of(run: KnownRun) -> str | None:
    """Where others reach it."""
    return None if run.url is None else page_elsewhere(run.url, run.host)


def _run(report: RunReport, known: KnownRun | None, now: float) -> KnownRun:
    """What is known after a report; what has a time keeps the one that it got first."""
    ended = None if known is None else known.ended_at_unix_seconds
    if ended is None and report.ended_at_seconds is not None:
        ended = now - report.seconds_ago(report.ended_at_seconds)
    started = now - report.seconds_ago(report.started_at_seconds)
    next_mark = report.first_mark + len(report.marks)
    return KnownRun(
        id=report.run_id,
        name=report.name or report.run_id,
        host=report.host,
        folder=report.folder,
        url=report.url,
        nodes=report.nodes,
        started_at_unix_seconds=started if known is None else known.started_at_unix_seconds,
        ended_at_unix_seconds=ended,
        exit_code=report.exit_code,
        reason=report.reason,
        last_step=report.last_step,
        heard_at_unix_seconds=now,
        next_mark=next_mark if known is None else max(known.next_mark, next_mark),
    )
