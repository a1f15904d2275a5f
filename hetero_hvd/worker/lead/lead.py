"""Rank 0 without our driver: it plans, keeps the books of the run, records and shows it.

All of that in one thread of its own, with the bus, the tracker and the recorder that our driver
has. The training waits for a first plan only, and for that not long.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_hvd.config import ClusterConfig, NodeConfig
from hetero_hvd.core.step_table import Observed
from hetero_hvd.core.view.meanings import Meaning
from hetero_hvd.errors import UserError
from hetero_hvd.messages import (
    BatchPlan,
    Calibrated,
    Event,
    Leaving,
    RunStarted,
    WorkersJoined,
)
from hetero_hvd.messages.identity import RunIdentity
from hetero_hvd.probes.sampling.local_samples import follow_samples
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.origin import origin_of
from hetero_hvd.run.records.run_folder import run_part
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.sinks.observer import SinkObserver, close_all
from hetero_hvd.run.tracking.begin_and_end import (
    RunLabels,
    publish_end,
    run_started,
    try_report,
    write_summary,
)
from hetero_hvd.run.tracking.final_report import as_text
from hetero_hvd.run.tracking.run_tracker import RunTracker
from hetero_hvd.worker.lead.loop_thread import LoopThread
from hetero_hvd.worker.lead.outbox import Told, told_in
from hetero_hvd.worker.lead.settings import LeadSettings

if TYPE_CHECKING:
    from hetero_hvd.worker.lead.page import LeadPage

logger = logging.getLogger(__name__)

ORIGIN_SECONDS = 1.0
"""For git to say what the script is; a first plan waits for it."""

CLOSE_SECONDS = 20.0
"""For the record and its report to be written at the end."""


class Lead:
    """Leads a run from the moment that this process has rank 0.

    Args:
        settings: What the run is to be like.
        run: Which run it is: a new one, or one that another process has led before.
        node: Name of this process's node.
        copy: Called in the thread with each event and its time, for those who keep a copy.
        before: Called in another thread before a folder is opened; may take its time.
    """

    def __init__(
        self,
        settings: LeadSettings,
        run: RunIdentity,
        node: str,
        copy: Callable[[float, Event], None] = lambda *_: None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._run = run
        self._node = node
        self._copy = copy
        self._before = before
        self._changed = threading.Condition()
        self._plan: BatchPlan | None = None
        self._answered = 0
        self._has_started = False
        self._start: tuple[float, RunStarted] | None = None
        self._ending: tuple[int, str] | None = None
        self._open_things = ExitStack()
        self._folder: Path | None = None
        self._page: LeadPage | None = None
        self._bus = EventBus(logger.warning)
        self._origin = origin_of((), Path())
        self._thread = LoopThread("the record of the run", begin=self._begin, end=self._end)

    @property
    def newest(self) -> BatchPlan | None:
        """The newest plan, of whatever membership."""
        return self._plan

    def told(self, message: Told) -> None:
        """Take in what a worker has told; never waits."""
        self._thread.put(partial(self._take, message))

    def heard(self, payload: bytes) -> None:
        """Take in what came from another worker with an exchange; never waits."""
        self._thread.put(partial(self._take_all, payload))

    def joined(
        self, event: WorkersJoined, grain: int, *, timeout_seconds: float
    ) -> BatchPlan | None:
        """A membership is complete; gives its first plan, or None after so long.

        Args:
            event: Tells of it.
            grain: Samples that are never divided in the plans from now on.
            timeout_seconds: The training waits no longer.
        """
        self._thread.put(partial(self._join, event, grain))
        with self._changed:
            self._changed.wait_for(lambda: self._answered >= event.rendezvous_id, timeout_seconds)
        plan = self._plan
        return plan if plan is not None and plan.rendezvous_id == event.rendezvous_id else None

    def calibrated(self, event: Calibrated, *, timeout_seconds: float) -> BatchPlan | None:
        """The members have measured themselves; gives the plan that follows, or None."""

        def is_answered() -> bool:
            plan = self._plan
            is_newer = plan is not None and plan.plan_id > event.plan_id
            return plan is not None and plan.rendezvous_id == event.rendezvous_id and is_newer

        self._thread.put(partial(self._bus.publish, event))
        with self._changed:
            self._changed.wait_for(is_answered, timeout_seconds)
            return self._plan if is_answered() else None

    def end(self, ending: tuple[int, str] | None) -> None:
        """Nothing more will come; the record is completed in the thread.

        Args:
            ending: Exit code and reason in words; None: the run goes on elsewhere.
        """
        self._ending = ending
        self._thread.close()

    def join(self) -> None:
        """Wait until the record is complete, but not for ever."""
        if not self._thread.join(CLOSE_SECONDS):
            logger.warning("the record of the run is not complete: its disk does not answer")

    # --- in the thread ------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._bus.redaction.hide(self._settings.environment)
        if self._settings.record.record:
            await asyncio.to_thread(self._before)
            self._open_folder()
        job = self._settings.job
        config = ClusterConfig(job=job, nodes=(NodeConfig(name=self._node),))
        self._tracker = RunTracker(
            config, _log, self._folder, self._bus, balance=self._settings.balance
        )
        self._bus.subscribe(self._note_plan, "")
        if self._settings.record.record:
            self._bus.subscribe(self._hand_on, "the copy of the record")
            await self._find_origin()
        if self._folder is not None:
            self._record(self._folder)
        if self._settings.has_page:
            await self._show()
        if self._folder is not None or self._page is not None:
            page = f"page: {self._page.url}/" if self._page is not None else ""
            run = f"run: {self._folder}" if self._folder is not None else ""
            sys.stderr.write("  ".join(filter(None, (run, page))) + "\n")

    def _open_folder(self) -> None:
        try:
            folder = self._open_things.enter_context(run_part(self._run, self._node))
        except UserError as error:
            logger.warning("this run is not recorded: %s", error)
            return
        self._folder = folder.path

    def _record(self, folder: Path) -> None:
        recorder = Recorder(folder, logger.warning)
        self._bus.subscribe(recorder.observe, "the record of the run")
        self._open_things.callback(recorder.close)
        recorder.pause_at_forks()
        exports = []
        for url in self._settings.job.export:
            try:
                exports.append(SinkObserver(url, logger.warning))
            except UserError as error:
                logger.warning("%s", error)
        for export in exports:
            self._bus.subscribe(export.observe, "an export")
        self._open_things.callback(close_all, exports)
        if seconds := self._settings.job.sample_seconds:
            sampler = follow_samples(self._node, self.told, seconds=seconds, say=logger.info)
            self._open_things.callback(sampler.close)

    async def _show(self) -> None:
        from hetero_hvd.worker.lead.page import LeadPage  # noqa: PLC0415 - it imports a web server

        try:
            page = LeadPage(
                self._settings.job, self._run.run_id, self._folder, self._tracker, self._bus
            )
            await page.listen()
        except UserError as error:
            logger.warning("there is no page: %s", error)
            return
        self._page = page

    async def _find_origin(self) -> None:
        asked = asyncio.to_thread(origin_of, self._command, Path())
        with suppress(TimeoutError, OSError):
            self._origin = await asyncio.wait_for(asked, ORIGIN_SECONDS)

    @property
    def _command(self) -> tuple[str, ...]:
        return tuple(sys.argv)

    def _join(self, event: WorkersJoined, grain: int) -> None:
        try:
            if not self._has_started:
                self._has_started = True
                self._publish_start(event)
            elif self._start is not None:  # who keeps a copy may be new, and needs it
                self._copy(*self._start)
            self._tracker.balancing.use_grain(grain)
            self._bus.publish(event)
        finally:
            with self._changed:
                self._answered = event.rendezvous_id
                self._changed.notify_all()

    def _publish_start(self, event: WorkersJoined) -> None:
        pairs = (tag.partition("=") for tag in self._run.tags)
        labels = RunLabels(self._run.name, {name: value for name, _, value in pairs})
        started = run_started(
            self._run.run_id,
            labels,
            command=self._command,
            origin=self._origin,
            nodes=sorted({worker.node for worker in event.workers}),
            job=self._settings.job,
        )
        self._bus.publish(started)

    def _take_all(self, payload: bytes) -> None:
        for message in told_in(payload):
            self._take(message)

    def _take(self, message: Told) -> None:
        if isinstance(message, Event):
            self._bus.publish(message)
        if isinstance(message, Leaving):
            self._tracker.summary.reached(message.applied_steps)

    def _note_plan(self, _at_unix_seconds: float, event: Observed) -> None:
        if isinstance(event, BatchPlan):
            with self._changed:
                self._plan = event
                self._changed.notify_all()

    def _hand_on(self, at_unix_seconds: float, event: Observed) -> None:
        if isinstance(event, RunStarted):
            self._start = at_unix_seconds, event
        if isinstance(event, Event):
            self._copy(at_unix_seconds, event)

    async def _end(self) -> None:
        with self._open_things:
            if self._ending is not None:
                code, reason = self._ending
                publish_end(self._tracker, self._bus, exit_code=code, reason=reason)
            self._tracker.close()
        if self._folder is not None and self._ending is not None:
            self._report(self._folder, *self._ending)
        if self._page is not None:
            await self._page.close(is_over=self._ending is not None)

    def _report(self, folder: Path, code: int, reason: str) -> None:
        facts = write_summary(
            folder,
            self._tracker,
            exit_code=code,
            reason=self._bus.redaction.text(reason),
            say=logger.warning,
        )
        for line in as_text(facts):
            logger.info("%s", line)
        if facts["memberships"]:
            try_report(folder, logger.warning)


def _log(line: str, _meaning: Meaning = "note", /) -> None:
    """What people are told by a driver goes into the log of who has none."""
    logger.info("%s", line)
