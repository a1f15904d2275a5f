"""The live lines of a running job."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from hetero_hvd.core.diagnosis.stall import stall_in_words
from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.core.view.live_words import out_of_memory_in_words
from hetero_hvd.core.view.meanings import Say
from hetero_hvd.messages import (
    BatchPlan,
    Evaluated,
    Finding,
    OutOfMemory,
    Recovered,
    Sharing,
    StalenessEnded,
    StallReported,
    WorkersJoined,
)
from hetero_hvd.run.tracking.summary import RunSegment

MAX_SHOWN_WORKERS = 8


class Progress:
    """Says how the training goes.

    Args:
        say: Shows a line.
        interval_seconds: Between two regular lines.
    """

    def __init__(self, say: Say, *, interval_seconds: float) -> None:
        self._say = say
        self._interval_seconds = interval_seconds
        self._next_at_seconds = -math.inf
        self._shares: tuple[int, ...] = ()
        self._sharing: Sharing = "planned"
        self._phase = RunSegment()

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus."""
        match event:
            case WorkersJoined():
                self.joined(event)
            case BatchPlan() if not event.calibration_ratio:  # else no step is taken by it
                self.planned(event)
            case StepTable():
                self.timed(event, now_seconds=time.monotonic())
            case Recovered():
                self.recovered(event)
            case OutOfMemory():
                self.out_of_memory(event)
            case StalenessEnded():
                self.staleness_ended(event)
            case Evaluated():
                self.evaluated(event)

    def joined(self, event: WorkersJoined) -> None:
        """A membership is complete."""
        names = ", ".join(map(str, event.workers))
        self._say(
            f"step {event.applied_steps}: {len(event.workers)} workers train together: {names}",
            "progress",
        )
        self._shares = ()
        self._sharing = event.sharing
        self._phase = RunSegment()

    def planned(self, plan: BatchPlan) -> None:
        """There is a new plan; shown if it changes the shares."""
        if plan.local_batch_sizes != self._shares:
            self._shares = plan.local_batch_sizes
            is_unknown = self._sharing == "fixed" and set(self._shares) == {1}
            if is_unknown or self._sharing == "varying":
                self._say(f"step {plan.from_step}: {plan.reason}", "progress")
                return
            shares = shown(
                [
                    f"{worker} {share}"
                    for worker, share in zip(plan.workers, self._shares, strict=True)
                ]
            )
            self._say(f"step {plan.from_step}: shares {shares}: {plan.reason}", "progress")

    def judged(self, step: int, findings: Sequence[Finding]) -> None:
        """Something else limits the run than before."""
        for found in findings:
            is_bad = found.kind in ("straggler", "stall")
            self._say(f"step {step}: {found}", "warning" if is_bad else "progress")

    def stalled(self, event: StallReported) -> None:
        """Nobody steps any more, or all do again."""
        self._say(stall_in_words(event), "warning" if event.is_stalled else "good")

    def recovered(self, event: Recovered) -> None:
        """A worker is back in training."""
        why = "interrupted" if event.cause == "fault" else "new membership"
        how = "state copied" if event.broadcast else "nothing copied"
        how += ", nothing computed anew" if event.keeps_steps else ""
        self._say(f"{event.worker} trains again after {event.seconds:.2f} s ({why}, {how})", "good")

    def out_of_memory(self, event: OutOfMemory) -> None:
        """A worker goes on in smaller pieces."""
        self._say(f"{out_of_memory_in_words(event)} ({event.error})", "warning")

    def staleness_ended(self, event: StalenessEnded) -> None:
        """Stale gradients do harm."""
        self._say(f"step {event.step}: staleness bound 0 from now on: {event.reason}", "warning")

    def evaluated(self, event: Evaluated) -> None:
        """An evaluation is done."""
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in event.metrics.items())
        self._say(f"step {event.step}: evaluation after epoch {event.epoch}: {metrics}", "progress")

    def timed(self, table: StepTable, *, now_seconds: float) -> None:
        """Account for an exchange; at most one line each interval.

        The first exchange of a membership is left out: it contains the start.
        """
        if table.is_first or math.isnan(table.step_seconds):
            return
        self._phase.add(table)
        if now_seconds < self._next_at_seconds:
            return
        self._next_at_seconds = now_seconds + self._interval_seconds
        phase, self._phase = self._phase, RunSegment()
        speed, ideal = phase.samples_per_second, phase.ideal_samples_per_second
        loads = shown(
            [
                f"{worker} {row.local_batch_size} in {row.busy_seconds * 1e3:.0f} ms"
                for worker, row in table.measured.items()
            ]
        )
        share = f"  ({speed / ideal:.2f} of ideal)" if speed and ideal else ""
        event = table.event
        loss = "" if math.isnan(event.loss) else f"  loss {event.loss:.4g}"
        self._say(
            f"step {event.step}  epoch {event.epoch}{loss}  {speed:.0f} samples/s{share}  {loads}",
            "step",
        )


def shown(parts: Sequence[str]) -> str:
    """The first few parts, and how many more there are."""
    more = len(parts) - MAX_SHOWN_WORKERS
    text = " | ".join(parts[:MAX_SHOWN_WORKERS])
    return f"{text} | and {more} more" if more > 0 else text
