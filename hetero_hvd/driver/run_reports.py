"""Tells the cluster's hub of this run, so that it appears there beside the recordings of machines.

It is told the state of the run every few seconds, and each mark until the hub has it: whatever
happens to the link or the hub, a report later it knows the same. Nothing waits for it but the end
of the job, and that not for long.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from platform import node

import msgspec

from hetero_hvd.core.backoff import doubled, jittered
from hetero_hvd.core.recording.runs import RunReported
from hetero_hvd.core.view.open_phases import PhaseLateness
from hetero_hvd.core.view.run_outline import RunOutline
from hetero_hvd.discovery.hub_client import HubConversation, HubOrders
from hetero_hvd.errors import TryAgainError, UserError
from hetero_hvd.probes.kernel.boot_clock import boot_seconds

logger = logging.getLogger(__name__)

REPORT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
CLOSE_SECONDS = 3.0
"""For the hub to hear of the end of the job."""


class RunReports:
    """Used in the loop's thread only.

    Args:
        hub: Reaches the hub.
        folder: Of the run.
        say: Tells people, once, that the hub does not hear of it.
        clock: Since boot.
    """

    def __init__(
        self,
        hub: HubOrders,
        folder: Path,
        say: Callable[[str], None],
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._hub = hub
        self._say = say
        self._clock = clock
        self._lateness = PhaseLateness()
        self._outline = RunOutline(node(), str(folder.absolute()))
        self._url: str | None = None
        self._next_mark = 0
        self._is_told = False
        self._ended = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._num_taken = 0
        self._num_failed = 0

    def observe(self, _at_unix_seconds: float, event: object) -> None:
        """An event of the bus."""
        late_seconds = self._lateness.observe(event, time.time())
        self._outline.observe(self._clock() - late_seconds, event)

    def begin(self, url: str) -> None:
        """Report from now on, if there may be a hub.

        Args:
            url: Of the run's page.
        """
        self._url = url
        if self._hub.is_possible:
            self._work = asyncio.create_task(self._report_all())

    @property
    def facts(self) -> dict[str, int]:
        """What the status tells of it."""
        return {"taken": self._num_taken, "failed": self._num_failed}

    async def close(self) -> None:
        """Tell of the end, if the hub is there."""
        if self._work is None:
            return
        self._url = None
        self._ended.set()
        _, waiting = await asyncio.wait({self._work}, timeout=CLOSE_SECONDS)
        for task in waiting:
            task.cancel()
            await asyncio.wait({task})
        if not self._work.cancelled() and (error := self._work.exception()) is not None:
            logger.error("the reports to the hub have failed", exc_info=error)

    async def _report_all(self) -> None:
        num_failures = 0
        while True:
            known = self._num_taken
            try:
                async with self._hub.conversation() as talk:
                    await self._talk(talk)
            except UserError as error:
                self._fail(error)
            except msgspec.ValidationError as error:
                self._fail(TryAgainError(f"it says what no hub says: {error}"))
            else:
                return
            num_failures = 0 if self._num_taken > known else num_failures + 1
            if self._ended.is_set():
                return
            longest = doubled(FIRST_RETRY_SECONDS, num_failures, MAX_RETRY_SECONDS)
            await self._wait(jittered(FIRST_RETRY_SECONDS, longest, random.random()))  # noqa: S311 - no secret
            if self._ended.is_set() and not self._num_taken:
                return  # there was no hub all the time

    async def _talk(self, talk: HubConversation) -> None:
        """Report until the end, and the end."""
        while True:
            is_last = self._ended.is_set()
            report = self._outline.report(self._clock(), self._url, self._next_mark)
            arguments = msgspec.to_builtins(report)
            answer = await talk.order("report", arguments, answer_seconds=ANSWER_SECONDS)
            self._next_mark = msgspec.convert(answer, RunReported).next_mark
            self._num_taken += 1
            if is_last:
                return
            await self._wait(REPORT_SECONDS)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)

    def _fail(self, error: UserError) -> None:
        self._num_failed += 1
        is_expected = self._hub.is_named or self._num_taken > 0
        if is_expected and not self._is_told:
            self._is_told = True
            self._say(f"note: the hub does not hear of this run: {error}; the training goes on")
