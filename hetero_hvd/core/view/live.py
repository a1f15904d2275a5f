"""What a run looks like now: a fold over its events, for the page, `top` and recorded runs.

A value that nobody has measured is None and is shown as such, never as zero.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.core.view.live_nodes import NodesView, NodeView
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.core.view.quality import Quality, QualityView, finite
from hetero_hvd.messages import (
    DRAINED,
    STEP_PARTS,
    BatchPlan,
    DeviceUsed,
    Event,
    Finding,
    FindingKind,
    Finished,
    GuardReported,
    NodeSampled,
    Ready,
    RunEnded,
    RunStarted,
    SetAsideReported,
    StepTiming,
    StragglerReported,
    WorkerExited,
    WorkerId,
    WorkerQuarantined,
    WorkersJoined,
    WorkerStarted,
)

MAX_EVENTS = 100
MAX_POINTS = 600
Severity = Literal["bad", "warning", "info", "unknown"]
WARNING_RATIO = 0.1
"""Of throughput: who could gain less is told so without any warning."""

_FINAL = ("finished", "drained", "set aside")
"""States of a worker that the end of its process does not change."""


class WorkerView(msgspec.Struct, kw_only=True):
    """One worker as it stands.

    Attributes:
        name: `node:slot`.
        state: `starting`, `ready`, `training`, `finished`, `ended`, `quarantined`,
            `drained`, by the guard, or `set aside`, as it has no samples.
        share: Samples per step by the newest plan.
        phases: Phase to seconds per step; unmeasured ones are absent.
        step_seconds: Seconds per step.
        lateness_seconds: So much later than the first one it was ready to reduce.
        overlapped_comm_seconds: Reduction beside other work, per step.
        samples_per_second: Samples per second of its own time, without any wait for others.
        speed_ratio: The same / the fastest worker's, 0...1: unequal machines differ, and are well.
        memory_bytes: Peak memory of its device, bytes.
        device_utilization_ratio: Of its GPU, 0...1.
        restarts: Processes of this slot before this one.
        slow_since_step: Since when it is slower than it should be; None: it is not.
        slow_cause: As in `StragglerReported`.
        expected_speed_ratio: Its speed / what it should be, while it is slow.
    """

    name: str
    state: str = "starting"
    share: int | None = None
    phases: dict[str, float] = msgspec.field(default_factory=dict)
    step_seconds: float | None = None
    lateness_seconds: float | None = None
    overlapped_comm_seconds: float | None = None
    samples_per_second: float | None = None
    speed_ratio: float | None = None
    memory_bytes: float | None = None
    device_utilization_ratio: float | None = None
    restarts: int = 0
    slow_since_step: int | None = None
    slow_cause: str | None = None
    expected_speed_ratio: float | None = None


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """How a part of a step is shown.

    Attributes:
        name: As in `WorkerView.phases`.
        words: For people.
        colour: Of its bar.
    """

    name: str
    words: str
    colour: str


PARTS = [PartView(name=part.name, words=part.words, colour=part.colour) for part in STEP_PARTS]


class LiveState(msgspec.Struct, kw_only=True):
    """A run as it stands; plain data, the body of GET /state.

    Attributes:
        run_id: See `RunStarted`.
        name: What its user calls it; empty: nothing.
        state: `starting`, `training` or `ended`; of a record also `no end recorded`.
        step: Last step heard of; -1 before the first.
        epoch: Of that step.
        loss: Of that step.
        samples_per_second: Of the whole job.
        now_unix_seconds: When this was told, by the clock of who tells it; None: not told.
        started_at_unix_seconds: When the run began; None: not known.
        stepped_at_unix_seconds: When the last step was heard of; None: there was none.
        ended_at_unix_seconds: None: it has not.
        ending: How far it came, if not to its last step, and why it ended; empty: it has not.
        quality: How good it is.
        verdict: What limits the run, in sentences; see `core.diagnosis.findings`.
        severities: Of each sentence: `bad`, `warning`, `info`, or `unknown` where it abstains.
        parts: Of a step, in the order of its bars.
        workers: By name.
        nodes: By name; those that have told what they do now.
        throughput: Points (seconds since 1970, samples per second), oldest first.
        events: (seconds since 1970, words), oldest first.
    """

    run_id: str = ""
    name: str = ""
    state: str = "starting"
    step: int = -1
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    now_unix_seconds: float | None = None
    started_at_unix_seconds: float | None = None
    stepped_at_unix_seconds: float | None = None
    ended_at_unix_seconds: float | None = None
    ending: str = ""
    quality: QualityView = msgspec.field(default_factory=QualityView)
    verdict: list[str] = msgspec.field(default_factory=list)
    severities: list[Severity] = msgspec.field(default_factory=list)
    parts: list[PartView] = msgspec.field(default_factory=PARTS.copy)
    workers: list[WorkerView] = msgspec.field(default_factory=list)
    nodes: list[NodeView] = msgspec.field(default_factory=list)
    throughput: list[tuple[float, float]] = msgspec.field(default_factory=list)
    events: list[tuple[float, str]] = msgspec.field(default_factory=list)


class LiveView:
    """Folds events into a `LiveState`; deterministic, cost of an event O(workers).

    Args:
        findings: Gives the judgement of the run as it stands.

    Attributes:
        num_events: Events folded in; grows with each change.
    """

    def __init__(self, findings: Callable[[], Sequence[Finding]]) -> None:
        self._findings = findings
        self.num_events = 0
        self._state = LiveState()
        self._quality = Quality()
        self._workers: dict[str, WorkerView] = {}
        self._nodes = NodesView()
        self._at_unix_seconds = 0.0
        self._events: deque[tuple[float, str]] = deque(maxlen=MAX_EVENTS)
        self._points: deque[tuple[float, float]] = deque(maxlen=MAX_POINTS)

    def observe(self, at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus.

        Args:
            at_unix_seconds: When it happened, seconds since 1970.
            event: What happened.
        """
        self.num_events += 1
        self._at_unix_seconds = at_unix_seconds
        self._quality.observe(at_unix_seconds, event)
        if words := event_in_words(event):
            self._events.append((at_unix_seconds, words))
        match event:
            case RunStarted():
                self._state.run_id = event.run_id
                self._state.name = event.name
                self._state.started_at_unix_seconds = at_unix_seconds
                self._state.ended_at_unix_seconds = None
                self._state.ending = ""
                for view in self._workers.values():  # those of the start before
                    _forget_that_it_is_slow(view)
            case WorkersJoined():
                self._joined(event)
            case BatchPlan():
                for worker, share in zip(event.workers, event.local_batch_sizes, strict=True):
                    self._worker(worker).share = share
            case StepTable():
                self._timed(at_unix_seconds, event)
            case NodeSampled():
                self._nodes.sampled(at_unix_seconds, event)
            case RunEnded():
                self._state.state = "ended"
                self._state.ended_at_unix_seconds = at_unix_seconds
                self._state.ending = self._ending(event)
            case _:
                self._of_workers(event)

    def state(self) -> LiveState:
        """The run as it stands."""
        self._state.workers = [self._workers[name] for name in sorted(self._workers)]
        self._state.nodes = self._nodes.at(self._at_unix_seconds)
        self._state.quality = self._quality.view
        findings = in_order(self._findings())
        self._state.verdict = list(map(str, findings))
        self._state.severities = list(map(severity_of, findings))
        self._state.events = list(self._events)
        self._state.throughput = list(self._points)
        return self._state

    def _ending(self, event: RunEnded) -> str:
        done, total = self._state.step + 1, self._quality.view.total_steps
        if total is None or done >= total:
            return event.reason
        return f"stopped at step {done} of {total}: {event.reason}"

    def _worker(self, worker: WorkerId) -> WorkerView:
        return self._workers.setdefault(str(worker), WorkerView(name=str(worker)))

    def _of_workers(self, event: Event) -> None:
        match event:
            case WorkerStarted():
                view = self._worker(event.worker)
                view.state = "starting"
                view.restarts = event.num_restarts
                _forget_that_it_is_slow(view)
            case Ready() if self._worker(event.worker).state != "training":
                self._worker(event.worker).state = "ready"
            case Finished():
                self._worker(event.worker).state = "finished"
            case WorkerExited() if self._worker(event.worker).state not in _FINAL:
                self._worker(event.worker).state = "ended"
            case WorkerQuarantined():
                self._worker(event.worker).state = (
                    "drained" if event.reason == DRAINED else "quarantined"
                )
            case GuardReported(what="drained") | SetAsideReported(what="tried"):
                is_drained = isinstance(event, GuardReported)
                for worker in event.workers:
                    self._worker(worker).state = "drained" if is_drained else "set aside"
            case DeviceUsed():
                ratio = finite(event.utilization_ratio)
                self._worker(event.worker).device_utilization_ratio = ratio
            case StragglerReported():
                view = self._worker(event.worker)
                since = event.since_step if event.since_step >= 0 else event.step
                view.slow_since_step = since if event.is_slow else None
                view.slow_cause = event.cause
                view.expected_speed_ratio = finite(event.speed_ratio) if event.is_slow else None

    def _joined(self, event: WorkersJoined) -> None:
        self._state.state = "training"
        members = set(map(str, event.workers))
        for view in self._workers.values():
            if view.name not in members:
                _forget_that_it_is_slow(view)
            if view.state == "training":
                view.state = "ready"
            view.share = view.lateness_seconds = None  # until the plan of these members
        for worker in event.workers:
            self._worker(worker).state = "training"

    def _timed(self, at_unix_seconds: float, table: StepTable) -> None:
        state, event = self._state, table.event
        state.step = event.step
        state.stepped_at_unix_seconds = at_unix_seconds
        state.epoch = event.epoch
        state.loss = finite(event.loss)
        for worker, row in table.measured.items():
            view = self._worker(worker)
            _measure(view, row)
            if table.is_whole:  # the last batch of an epoch, which may be smaller, says nothing
                view.share = row.local_batch_size
            view.lateness_seconds = finite(table.lateness_seconds[worker])
        views = [self._worker(worker) for worker in table.workers]
        fastest = max((view.samples_per_second or 0.0 for view in views), default=0.0)
        for view in views:
            speed = view.samples_per_second
            view.speed_ratio = speed / fastest if speed is not None and fastest > 0 else None
        if table.is_first:
            return
        state.samples_per_second = finite(table.samples_per_second)
        if state.samples_per_second is not None:
            self._points.append((at_unix_seconds, state.samples_per_second))


def severity_of(finding: Finding) -> Severity:
    """How much a judgement matters to who reads it now."""
    if not finding.is_complete:
        return "unknown"
    if finding.is_past:
        return "info"
    if finding.kind == "stall":
        return "bad"
    gain = finding.max_gain_ratio or 0.0
    return "warning" if finding.kind == "straggler" or gain >= WARNING_RATIO else "info"


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """As people read them: that nobody steps, who is slow, shares that cost, what binds the run.

    That the shares are well balanced is the last: it explains nothing.
    """
    shown = [found for found in findings if found.kind != "memory" or found.next_step]
    order: tuple[FindingKind, ...] = ("stall", "straggler", "imbalance")

    def place(found: Finding) -> int:
        if found.kind == "imbalance" and not found.max_gain_ratio:
            return len(order) + 1
        return order.index(found.kind) if found.kind in order else len(order)

    return sorted(shown, key=place)


def _forget_that_it_is_slow(view: WorkerView) -> None:
    view.slow_since_step = view.slow_cause = view.expected_speed_ratio = None


def _measure(view: WorkerView, row: StepTiming) -> None:
    seconds = {part.name: getattr(row, part.column) for part in STEP_PARTS}
    view.phases = {name: value for name, value in seconds.items() if math.isfinite(value)}
    view.step_seconds = finite(row.step_seconds)
    view.overlapped_comm_seconds = finite(row.overlapped_comm_seconds)
    view.memory_bytes = finite(row.memory_bytes)
    view.samples_per_second = finite(row.samples_per_busy_second)
