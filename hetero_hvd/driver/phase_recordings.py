"""Has the cluster's hub record what machines do while the script is in a phase that wants it.

A recording begins when the first worker enters the phase and ends when the last one has left it,
or is lost. It is ordered by how long ago that was: a hub that is found late misses nothing, as it
stores all samples anyhow. Without a hub the training goes on as it would.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

from hetero_hvd.core.view.open_phases import OpenPhases, PhaseLateness
from hetero_hvd.discovery.hub_client import HubOrders
from hetero_hvd.errors import UserError
from hetero_hvd.messages import SessionsWanted

MAX_RECORDINGS = 100
"""Of one job: a phase of each step is no recording."""

OLD_SECONDS = 1.0
"""What a worker tells of so long ago was before it took part, as its script loaded data."""

CLOSE_SECONDS = 10.0
"""For the last recordings to be ended at the end of the job."""


class _RecordedPhase:
    """One that goes on, or has ended and is not written yet; times are monotonic."""

    def __init__(self, phase: str, begin_seconds: float) -> None:
        self.phase = phase
        self.begin_seconds = begin_seconds
        self.end_seconds: float | None = None
        self.name: str | None = None
        self.is_written = False


class PhaseRecordings:
    """Used in the loop's thread only.

    Args:
        hub: Reaches the hub.
        say: Tells people, once, that nothing is recorded.
    """

    def __init__(self, hub: HubOrders, say: Callable[[str], None]) -> None:
        self._hub = hub
        self._say = say
        self._phases = OpenPhases()
        self._lateness = PhaseLateness()
        self._open: dict[str, _RecordedPhase] = {}
        self._ended_at_seconds: dict[str, float] = {}
        self._changed: asyncio.Queue[_RecordedPhase] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None
        self._going_on: list[_RecordedPhase] = []  # the hub could not be told of their end
        self._num_begun = 0
        self._is_told = False

    def observe(self, _at_unix_seconds: float, event: object) -> None:
        """An event of the bus."""
        late_seconds = self._lateness.observe(event, time.time())
        if (wanted := self._phases.observe(event)) is not None:
            at_seconds = time.monotonic() - late_seconds
            is_old = isinstance(event, SessionsWanted) and event.ago_seconds > OLD_SECONDS
            self._follow(wanted, at_seconds, is_old=is_old)

    async def close(self) -> None:
        """End all that go on."""
        self._follow(frozenset(), time.monotonic(), is_old=False)
        if self._work is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.join(), CLOSE_SECONDS)
            self._work.cancel()
            with suppress(asyncio.CancelledError):
                await self._work

    def _follow(self, wanted: frozenset[str], at_seconds: float, *, is_old: bool) -> None:
        for phase in sorted(wanted - self._open.keys()):
            if is_old and at_seconds < self._ended_at_seconds.get(phase, -math.inf):
                continue  # another worker has told of the same time
            self._num_begun += 1
            if self._num_begun > MAX_RECORDINGS:
                self._tell(phase, f"there were {MAX_RECORDINGS} already, which is the most")
                continue
            begun = self._open[phase] = _RecordedPhase(phase, at_seconds)
            if is_old:  # its end is told next, if it has ended: it is cut out of what is stored
                loop = asyncio.get_running_loop()
                loop.call_later(OLD_SECONDS, self._changed.put_nowait, begun)
            else:
                self._changed.put_nowait(begun)
        while self._going_on:
            self._changed.put_nowait(self._going_on.pop())
        for phase in sorted(self._open.keys() - wanted):
            ended = self._open.pop(phase)
            ended.end_seconds = self._ended_at_seconds[phase] = at_seconds
            self._changed.put_nowait(ended)
        if self._work is None and (self._open or not self._changed.empty()):
            self._work = asyncio.create_task(self._order_all())

    async def _order_all(self) -> None:
        while True:
            recording = await self._changed.get()
            try:
                await self._order(recording)
            except UserError as error:
                if error.may_pass and recording.name is not None:
                    self._going_on.append(recording)
                self._tell(recording.phase, str(error))
            finally:
                self._changed.task_done()

    async def _order(self, recording: _RecordedPhase) -> None:
        """Begin it; end it; or where it could not be begun, cut it out of what is stored."""
        if recording.is_written:
            return
        async with self._hub.conversation() as talk:
            now = time.monotonic()  # not before the hub is there, as it counts from then on
            new = {
                "name": recording.phase,
                "is_numbered": True,
                "from": min(0.0, recording.begin_seconds - now),
            }
            if recording.end_seconds is None:
                recording.name = (await talk.order("start", new))["name"]
            elif recording.name is not None:
                await talk.order("stop", {"name": recording.name})
            else:
                await talk.order("cut", new | {"to": min(0.0, recording.end_seconds - now)})
                recording.is_written = True

    def _tell(self, phase: str, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._say(f"note: phase {phase!r} is not recorded: {why}; the training goes on")
