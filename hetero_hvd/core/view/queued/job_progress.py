"""How far a job is and how fast each of its nodes: a fold over its events, for a queue of jobs."""

from __future__ import annotations

import math

import msgspec

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.core.view.queued.reduction_meter import ReductionFacts, ReductionMeter
from hetero_hvd.messages import GuardReported, Logged


class FailingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that the job's guard has drained, or would have.

    Attributes:
        words: Why, for people.
        is_lasting: Whether that does not end by itself.
    """

    words: str
    is_lasting: bool


class ProgressFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue wants to know of a job.

    Attributes:
        samples_done: That the training has used so far; 0: nothing is known.
        samples_left: Until the last epoch is done; None: not known.
        model: What is trained, as in `WorkersJoined`; empty: not told.
        global_batch_size: Samples per optimizer step; 0: not told.
        rates: Node to samples per second of a worker's own time there.
        reductions: What they take; None: not measured, or there is one worker.
        failing: Node to what its guard says of it.
        idle_seconds: For so long the devices of a command have done nothing; None: of a training.
    """

    samples_done: float = 0.0
    samples_left: float | None = None
    model: str = ""
    global_batch_size: int = 0
    rates: dict[str, float] = {}
    reductions: ReductionFacts | None = None
    failing: dict[str, FailingNode] = {}
    idle_seconds: float | None = None


class JobProgress:
    """Takes in events; see `facts`."""

    def __init__(self) -> None:
        self._step = 0
        self._samples_per_step = 0
        self._last_step = -1
        self._model = ""
        self._global_batch_size = 0
        self._rates: dict[str, float] = {}
        self._failing: dict[str, FailingNode] = {}
        self._reductions = ReductionMeter()

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """An event of the bus."""
        self._reductions.observe(event)
        match event:
            case StepTable():
                self._timed(event)
            case GuardReported():
                self._guarded(event)
            case Logged():
                self._step = max(self._step, event.step)
                self._last_step = -1
                if event.remaining_steps >= 0:
                    self._last_step = event.step + event.steps_to_take

    def _timed(self, table: StepTable) -> None:
        self._step = max(self._step, table.step + 1)
        if table.is_whole:
            self._samples_per_step = table.samples_per_step
        self._global_batch_size = table.joined.global_batch_size
        if table.joined.model != self._model:  # a script may train several, one after the other
            self._model = table.joined.model
            self._rates.clear()
        for worker, row in table.measured.items():
            if row.local_batch_size and math.isfinite(row.busy_seconds) and row.busy_seconds > 0:
                self._rates[worker.node] = row.local_batch_size / row.busy_seconds

    def _guarded(self, event: GuardReported) -> None:
        for node in {worker.node for worker in event.workers}:
            if event.what in ("drained", "refused"):
                self._failing[node] = FailingNode(words=event.words, is_lasting=event.is_lasting)
            elif event.what in ("returned", "ended"):
                self._failing.pop(node, None)

    def told(self, _question: object) -> str:
        """The facts as JSON: the answer to an order to the driver."""
        return msgspec.json.encode(self.facts).decode()

    @property
    def facts(self) -> ProgressFacts:
        """As it is now."""
        left = (self._last_step - self._step) * self._samples_per_step
        is_known = self._last_step >= 0 and self._samples_per_step > 0
        return ProgressFacts(
            samples_done=float(self._step * self._samples_per_step),
            samples_left=max(0.0, float(left)) if is_known else None,
            model=self._model,
            global_batch_size=self._global_batch_size,
            rates=dict(self._rates),
            reductions=self._reductions.facts,
            failing=dict(self._failing),
        )
