"""What a run was like, counted while it goes on."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.messages import (
    BatchPlan,
    CheckpointFailed,
    CheckpointWritten,
    Evaluated,
    Finding,
    Finished,
    Recovered,
    ScriptEnded,
    WorkerId,
    WorkersJoined,
)

BALANCED_RATIO = 0.10
"""(largest - smallest) / mean of the workers' busy times below which a plan counts as balanced."""

BALANCED_EXCHANGES = 3
"""In a row, so that one lucky measurement does not count."""

MAX_SHARE_CHANGES = 1000


@dataclass(kw_only=True)
class RunSegment:
    """Sums over the exchanges of a part of the run."""

    num_exchanged_steps: int = 0
    num_samples: float = 0.0
    num_seconds: float = 0.0
    num_ideal_samples: float = 0.0
    num_ideal_seconds: float = 0.0
    busy_seconds: dict[WorkerId, float] = field(default_factory=lambda: defaultdict(float))
    num_steps: dict[WorkerId, int] = field(default_factory=lambda: defaultdict(int))
    samples: dict[WorkerId, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, table: StepTable) -> None:
        """Account for one exchange."""
        seconds = table.num_steps * table.step_seconds
        if not math.isfinite(seconds):
            return
        self.num_exchanged_steps += table.num_steps
        self.num_samples += table.num_steps * table.samples_per_step
        self.num_seconds += seconds
        if math.isfinite(table.ideal_samples_per_second):
            self.num_ideal_samples += table.ideal_samples_per_second * seconds
            self.num_ideal_seconds += seconds
        for worker, row in table.measured.items():
            if math.isfinite(row.busy_seconds):
                self.samples[worker] += row.local_batch_size * row.num_steps
                self.busy_seconds[worker] += row.busy_seconds * row.num_steps
                self.num_steps[worker] += row.num_steps

    @property
    def samples_per_second(self) -> float | None:
        """Speed of all workers together; None if nothing was measured."""
        return self.num_samples / self.num_seconds if self.num_seconds else None

    @property
    def ideal_samples_per_second(self) -> float | None:
        """What the workers could do; None if nothing was measured."""
        return self.num_ideal_samples / self.num_ideal_seconds if self.num_ideal_seconds else None

    @property
    def mean_batch_size(self) -> float | None:
        """Samples of all workers per step; None if nothing was measured."""
        return self.num_samples / self.num_exchanged_steps if self.num_exchanged_steps else None

    def mean_share(self, worker: WorkerId) -> float | None:
        """Mean samples of one worker in a step that it was in; None if it was not measured."""
        steps = self.num_steps.get(worker)
        return self.samples[worker] / steps if steps else None

    def mean_busy_seconds(self, worker: WorkerId) -> float | None:
        """Mean busy time of one worker in a step; None if it was not measured."""
        steps = self.num_steps.get(worker)
        return self.busy_seconds[worker] / steps if steps else None


@dataclass(kw_only=True)
class WorkerRecord:
    """What is remembered about one worker.

    Attributes:
        shares: Steps and the shares from then on.
        recoveries: In order.
        loop: Number of the loop over epochs that its process has begun last; 0 before the first.
        finished: How it came through the newest loop that anybody has begun; None: not yet.
        script_ended: How its script has ended before the last epoch.
        exit_codes: Of its processes.
        is_ended_by_driver: Whether the driver has ended the last one, as the job was over.
    """

    shares: list[tuple[int, int]] = field(default_factory=list)
    recoveries: list[Recovered] = field(default_factory=list)
    loop: int = 0
    finished: Finished | None = None
    script_ended: ScriptEnded | None = None
    exit_codes: list[int] = field(default_factory=list)
    is_ended_by_driver: bool = False

    @property
    def end(self) -> Finished | ScriptEnded | None:
        """How its script has ended in the newest membership, if it has."""
        return self.finished or self.script_ended


def of_arithmetic(end: Finished | ScriptEnded) -> str:
    """Whose states are equal at their ends; all that have finished have been made equal."""
    return end.arithmetic if isinstance(end, ScriptEnded) else ""


class Summary:
    """Takes in the job's events; memory does not grow with the number of steps.

    Args:
        baseline_steps: First steps with uniform shares.

    Attributes:
        follows_plan: Whether a plan says what each worker takes in a step.
    """

    def __init__(self, *, baseline_steps: int) -> None:
        self.workers: dict[WorkerId, WorkerRecord] = defaultdict(WorkerRecord)
        self.num_memberships = 0
        self.last_step = -1
        self.global_batch_size = 0
        self.steps_until_balanced: int | None = None
        self.evaluated: Evaluated | None = None
        self.findings: tuple[Finding, ...] = ()
        self.uniform = RunSegment()
        self.converging = RunSegment()
        self.balanced = RunSegment()
        self._written: dict[int, CheckpointWritten] = {}
        self._not_kept: dict[int, CheckpointFailed] = {}
        self._baseline_steps = baseline_steps
        self._loop = self._first_step = 0
        self._earlier_steps = self._loop_steps = 0
        self._is_through = False
        self.follows_plan = True
        self._balanced_since: tuple[int, int] = (0, 0)

    def observe(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take in what decides how the run goes on; an observer of the bus."""
        match event:
            case WorkersJoined():
                self.joined(event)
            case BatchPlan() if not event.calibration_ratio:  # else no step is taken by it
                self.planned(event)
            case Recovered():
                self.workers[event.worker].recoveries.append(event)
            case Evaluated():
                self.evaluated = event
                self.reached(event.step)
            case Finished():
                self.finished(event)
            case CheckpointWritten():
                self._written[event.trainer] = event
            case CheckpointFailed():
                self._not_kept[event.trainer] = event

    def observe_tables(self, _at_unix_seconds: float, event: Observed) -> None:
        """Take in what was measured; an observer of the bus."""
        if isinstance(event, StepTable):
            self.timed(event)

    def joined(self, event: WorkersJoined) -> None:
        """A membership is complete."""
        if not self.num_memberships:
            self._first_step = event.applied_steps
        self.num_memberships += 1
        if self._is_through and event.applied_steps < self._loop_steps:  # another loop over epochs
            self._earlier_steps += self._loop_steps
            self._loop_steps = 0
        self._is_through = False
        self.global_batch_size = event.global_batch_size
        self.follows_plan = event.follows_plan
        self.reached(event.applied_steps)
        for worker in event.workers:
            self.workers[worker].script_ended = None

    def reached(self, applied_steps: int) -> None:
        """A worker has applied so many steps."""
        self.last_step = max(self.last_step, applied_steps - 1)
        self._loop_steps = max(self._loop_steps, applied_steps)

    def entered(self, worker: WorkerId, loop: int) -> None:
        """A worker begins a loop over epochs: what anybody has finished before was not the last."""
        self.workers[worker].loop = loop
        for record in self.workers.values() if loop > self._loop else ():
            record.finished = None
        self._loop = max(loop, self._loop)

    def finished(self, event: Finished) -> None:
        """A worker has come through a loop; one that others have left behind has no result."""
        record = self.workers[event.worker]
        if record.loop == self._loop:
            record.finished = event
            self.reached(event.applied_steps)
            self._is_through = True

    def script_ended(self, worker: WorkerId, event: ScriptEnded) -> None:
        """A worker's script has ended before its loop over the epochs was through."""
        self.reached(event.applied_steps)
        self.workers[worker].script_ended = event

    def planned(self, plan: BatchPlan) -> None:
        """A plan was made."""
        if not self.follows_plan:
            return
        for worker, share in zip(plan.workers, plan.local_batch_sizes, strict=True):
            shares = self.workers[worker].shares
            if (not shares or shares[-1][1] != share) and len(shares) < MAX_SHARE_CHANGES:
                shares.append((plan.from_step, share))

    def timed(self, table: StepTable) -> None:
        """An exchange took place. The first of a membership is left out: it contains the start."""
        self.reached(table.step + 1)
        if table.is_first or math.isnan(table.step_seconds):
            return
        if table.joined.shares_fixed:
            self.global_batch_size = max(table.samples_per_step, self.global_batch_size)
        if not table.follows_plan:
            for worker, row in table.measured.items():
                self.workers[worker].shares[:] = [(table.step, row.local_batch_size)]
            self.converging.add(table)
            return
        if table.step < self._baseline_steps:
            self.uniform.add(table)
            return
        self._look_for_balance(table)
        segment = self.converging if self.steps_until_balanced is None else self.balanced
        segment.add(table)

    def _look_for_balance(self, table: StepTable) -> None:
        if self.steps_until_balanced is not None:
            return
        since, count = self._balanced_since
        if table.imbalance_ratio <= BALANCED_RATIO:
            since, count = (since if count else table.step), count + 1
        else:
            count = 0
        self._balanced_since = since, count
        if count == BALANCED_EXCHANGES:
            self.steps_until_balanced = since - max(self._baseline_steps, self._first_step)

    @property
    def is_consistent(self) -> bool | None:
        """Whether all workers ended with the same state; None if none said so."""
        ends = [end for record in self.workers.values() if (end := record.end) and end.checksum]
        last = max((end.applied_steps for end in ends), default=0)
        found = {(of_arithmetic(end), end.checksum) for end in ends if end.applied_steps == last}
        return len(found) == len({arithmetic for arithmetic, _ in found}) if found else None

    @property
    def not_kept(self) -> list[CheckpointFailed]:
        """Of each trainer the last state that was to be kept, where it is not there."""
        written = {trainer: event.step for trainer, event in self._written.items()}
        return [one for one in self._not_kept.values() if written.get(one.trainer, -1) < one.step]

    @property
    def newest_checkpoint(self) -> CheckpointWritten | None:
        """The newest state that was kept, of the script's last trainer; None: none, as heard."""
        return self._written[max(self._written)] if self._written else None

    @property
    def num_steps(self) -> int:
        """Optimizer steps applied, in all loops over epochs, as far as heard."""
        return self._earlier_steps + self._loop_steps
