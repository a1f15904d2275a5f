"""A copy of the record on a second host, so that the loss of rank 0's machine costs seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from hetero_hvd.core.step_table import StepTables
from hetero_hvd.errors import UserError
from hetero_hvd.messages import Event, RunEnded, RunStarted
from hetero_hvd.messages.identity import RunIdentity
from hetero_hvd.run.event_bus import steady_time
from hetero_hvd.run.records.reader import run_id_of
from hetero_hvd.run.records.run_folder import run_part
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.worker.lead.loop_thread import LoopThread
from hetero_hvd.worker.lead.outbox import copied_in

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0


class RunCopy:
    """Writes what rank 0 hands on, in a thread of its own.

    Args:
        run: Which run it is.
        node: Name of this process's node.
        before: Called in another thread before a folder is opened; may take its time.
    """

    def __init__(
        self, run: RunIdentity, node: str, before: Callable[[], None] = lambda: None
    ) -> None:
        self._run = run
        self._node = node
        self._before = before
        self._open_things = ExitStack()
        self._recorder: Recorder | None = None
        self._timings: TimingLog | None = None
        self._tables = StepTables()
        self._now = steady_time()
        self._has_start = False
        self._ending: tuple[int, str] | None = None
        self._thread = LoopThread("the copy of the record", begin=self._begin, end=self._end)

    def heard(self, payload: bytes) -> None:
        """Take in what rank 0 has handed on; never waits."""
        self._thread.put(partial(self._take, payload))

    def end(self, ending: tuple[int, str] | None) -> None:
        """Nothing more will come.

        Args:
            ending: Exit code and reason in words; None: the run goes on elsewhere.
        """
        self._ending = ending
        self._thread.close()

    def join(self) -> None:
        """Wait until all is written, but not for ever."""
        self._thread.join(CLOSE_SECONDS)

    async def _begin(self) -> None:
        await asyncio.to_thread(self._before)
        try:
            folder = self._open_things.enter_context(run_part(self._run, self._node)).path
        except UserError as error:
            logger.warning("no copy of the run's record is kept here: %s", error)
            return
        self._has_start = run_id_of(folder) == self._run.run_id
        self._timings = TimingLog(folder)
        self._open_things.callback(self._timings.close)
        self._recorder = Recorder(folder)
        self._open_things.callback(self._recorder.close)
        self._recorder.pause_at_forks()

    def _take(self, payload: bytes) -> None:
        for at_unix_seconds, event in copied_in(payload):
            if isinstance(event, RunStarted):
                if self._has_start:  # it is handed on again at each membership
                    continue
                self._has_start = True
            self._write(at_unix_seconds, event)

    def _write(self, at_unix_seconds: float, event: Event) -> None:
        if self._recorder is None or self._timings is None:
            return
        self._timings.observe(at_unix_seconds, event)
        self._recorder.observe(at_unix_seconds, event)
        if (table := self._tables.observe(event)) is not None:
            self._recorder.observe(at_unix_seconds, table)

    async def _end(self) -> None:
        with self._open_things:
            if self._ending is not None:
                code, reason = self._ending
                self._write(self._now(), RunEnded(exit_code=code, reason=reason))
