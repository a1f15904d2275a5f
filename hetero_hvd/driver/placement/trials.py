"""A trial of placements inside a running job: nodes leave and come back, and are measured.

What is due is decided in `core.advice.placement_trial`; here it is done, told in a line each, and
kept. Workers leave and come back as those that are set aside: after the step under way, by a new
process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from hetero_hvd.config import JobConfig
from hetero_hvd.core.advice.measured import trial_in_words
from hetero_hvd.core.advice.placement_trial import PlacementTrial, TrialSettings
from hetero_hvd.core.cost.meters import PowerMeters
from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.driver.workers.worker_pool import WorkerPool
from hetero_hvd.messages import (
    NodeSampled,
    NodesPriced,
    ScriptEnded,
    SetAsideReported,
    TrialReported,
    WorkerExited,
    WorkerId,
    WorkersJoined,
)
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.placements import keep_trial
from hetero_hvd.run.records.run_files import CHANGE_SECONDS

REASON = "left out by a trial"


class Trials:
    """Observes the bus. Used in the loop's thread.

    Args:
        settings: What to try.
        job: The settings of the job.
        slots: The workers.
        bus: Is told of all that is done, and of what was found.
        say: Tells people.
        folder: Of the run; what was found is kept beside it.
        script: That is trained, as it is kept.
    """

    def __init__(
        self,
        settings: TrialSettings,
        job: JobConfig,
        slots: WorkerPool,
        bus: EventBus,
        *,
        say: Callable[[str], None],
        folder: Path,
        script: str = "",
    ) -> None:
        patience_seconds = job.elastic_timeout_seconds
        settings = replace(settings, min_np=job.min_np, patience_seconds=patience_seconds)
        self._trial = PlacementTrial(settings)
        self._max_np = job.max_np
        self._slots = slots
        self._bus = bus
        self._say = say
        self._folder = folder if job.remember else None
        self._script = script
        self._away: set[WorkerId] = set()
        self._power = PowerMeters()
        self._step = -1
        self._at_unix_seconds = math.nan
        self._is_told = False
        self._unkept: TrialReported | None = None
        self._has_begun = False
        self._is_waiting = False
        bus.subscribe(self.observe, "the trial")

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be tried."""
        return self._trial.is_over

    def observe(self, at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus."""
        match event:
            case NodesPriced():
                self._trial.priced(event.per_hour)
            case NodeSampled() if self._trial.is_measuring:
                self._power.add(event)
            case WorkersJoined():
                self._trial.joined(event)
            case WorkerExited() if self._slots.may_restart:
                slot = self._slots.find(event.host)
                is_there = slot is not None and slot.is_wanted  # else it was let go
                has_ended = slot is not None and isinstance(slot.last_word, ScriptEnded)
                if is_there and not has_ended:
                    self._trial.lost(event.worker)
            case StepTable() if self._slots.may_restart:  # else who leaves could not come back
                self._timed(at_unix_seconds, event)
            case _:
                return
        self.act()

    def act(self) -> None:
        """Have those train who should, and tell what there is to tell."""
        for line in self._trial.news():
            self._say(line)
        if self._slots.may_restart:
            self._away = set(filter(self._slots.is_withdrawn, self._away))  # others are drained
            self._let_back()
            self._leave_out()
        if self._trial.is_over and not self._is_told:
            self._is_told = True
            report = self._trial.report()
            for line in trial_in_words(report):
                self._say(line)
            self._bus.publish(report)
            self._unkept = None if self._folder is None else report
        self._keep(wait_seconds=0.0)

    def close(self) -> None:
        """The job ends."""
        self._trial.close()
        self.act()
        self._keep(wait_seconds=CHANGE_SECONDS)

    def _keep(self, *, wait_seconds: float) -> None:
        """Keep what was found, if another job is not changing the file: then it is tried again."""
        if self._folder is None or self._unkept is None:
            return
        is_done = keep_trial(
            self._folder,
            self._unkept,
            script=self._script,
            at_unix_seconds=self._at_unix_seconds,
            wait_seconds=wait_seconds,
        )
        if is_done:
            self._unkept = None

    def _timed(self, at_unix_seconds: float, table: StepTable) -> None:
        self._step = table.step
        self._at_unix_seconds = at_unix_seconds
        if self._waits_for_others(table):
            return
        slots = self._slots.all
        is_anyone_starting = any(not s.is_available and not s.num_refusals for s in slots)
        members = set(table.workers)
        able = {slot.worker for slot in slots if slot.is_available}
        are_all_in = len(members) == self._max_np or members == able
        was_measuring = self._trial.is_measuring
        self._trial.timed(
            table,
            at_seconds=at_unix_seconds,
            there={slot.worker for slot in slots if slot.is_wanted} | self._away,
            is_settled=are_all_in and not is_anyone_starting,
            watts=self._power.mean_watts,
        )
        if was_measuring and not self._trial.is_measuring:
            self._power = PowerMeters()

    def _waits_for_others(self, table: StepTable) -> bool:
        """One node alone is no trial, as long as others may come: other jobs may have them."""
        here = {worker.node for worker in table.workers}
        others = sorted({slot.worker.node for slot in self._slots.all if slot.is_wanted} - here)
        is_full = len(table.workers) == self._max_np
        self._has_begun = self._has_begun or len(here) > 1 or is_full or not others
        if not (self._has_begun or self._is_waiting):
            self._is_waiting = True
            self._say(f"trial: begins when one of {', '.join(others)} trains, too")
        return not self._has_begun

    def _let_back(self) -> None:
        wanted = self._trial.wanted
        back = {worker for worker in self._away if wanted is None or worker in wanted}
        if back:
            self._away -= back
            self._publish("returned", back, f"{_names(back)} takes part again in a trial")
            self._slots.readmit(back)

    def _leave_out(self) -> None:
        wanted = self._trial.wanted
        if wanted is None:
            return
        leaving = [s for s in self._slots.all if s.is_wanted and s.worker not in wanted]
        if leaving:
            workers = {slot.worker for slot in leaving}
            self._away |= workers
            self._publish("tried", workers, f"a trial without {_names(workers)}")
            self._slots.withdraw(leaving, REASON, f"is {REASON}")

    def _publish(self, what: str, workers: Iterable[WorkerId], words: str) -> None:
        self._bus.publish(
            SetAsideReported(
                what="tried" if what == "tried" else "returned",
                step=self._step,
                workers=tuple(sorted(workers)),
                words=words,
            )
        )


def _names(workers: Iterable[WorkerId]) -> str:
    return ", ".join(map(str, sorted(workers)))
