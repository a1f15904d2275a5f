"""A run in short, as the hub of the cluster is told of it: a fold over its events."""

from __future__ import annotations

from collections import deque
from itertools import islice

from hetero_hvd.core.printable import printable
from hetero_hvd.core.recording.runs import (
    MAX_MARKS,
    MAX_NODES,
    MarkKind,
    RunMark,
    RunReport,
    shortened_text,
)
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.core.view.open_phases import OpenPhases
from hetero_hvd.messages import BatchPlan, Finished, RunEnded, RunStarted, StepsTimed, WorkersJoined


class RunOutline:
    """Folds events in; memory is bounded.

    Args:
        host: Name of the driver's machine.
        folder: Of the run.
    """

    def __init__(self, host: str, folder: str) -> None:
        self._host = shortened_text(host)
        self._folder = printable(folder)
        self._run_id = ""
        self._name = ""
        self._nodes: dict[str, None] = {}
        self._started_at_seconds = 0.0
        self._ended_at_seconds: float | None = None
        self._end: RunEnded | None = None
        self._last_step: int | None = None
        self._shares: object = None
        self._phases = OpenPhases()
        self._open: frozenset[str] = frozenset()
        self._marks: deque[RunMark] = deque(maxlen=MAX_MARKS)
        self._num_marks = 0

    def observe(self, at_seconds: float, event: object) -> None:
        """Take in an event.

        Args:
            at_seconds: When it happened, by the clock of all of them.
            event: What happened.
        """
        match event:
            case RunStarted():
                self._run_id = event.run_id
                self._name = shortened_text(event.name)
                self._nodes = dict.fromkeys(event.nodes)
                self._started_at_seconds = at_seconds
            case StepsTimed(step=step) if step >= 0:
                self._last_step = step
            case Finished() if event.applied_steps:
                self._last_step = max(self._last_step or 0, event.applied_steps - 1)
            case WorkersJoined():
                self._nodes |= dict.fromkeys(worker.node for worker in event.workers)
                self._mark(at_seconds, "reset", event_in_words(event) or "")
            case BatchPlan() if self._shares != (event.workers, event.local_batch_sizes):
                self._shares = event.workers, event.local_batch_sizes
                self._mark(at_seconds, "plan", event_in_words(event) or "")
            case RunEnded():
                self._end = event
                self._ended_at_seconds = at_seconds
            case _:
                self._follow(at_seconds, event)

    def report(self, now_seconds: float, url: str | None, from_mark: int) -> RunReport:
        """The run as it stands, with the marks from a number on, as far as they are kept."""
        num_left_out = self._num_marks - len(self._marks)
        first = min(max(from_mark, num_left_out), self._num_marks)
        end = self._end
        return RunReport(
            run_id=self._run_id,
            name=self._name,
            host=self._host,
            folder=self._folder,
            url=url,
            nodes=tuple(islice(self._nodes, MAX_NODES)),
            now_seconds=now_seconds,
            started_at_seconds=self._started_at_seconds,
            ended_at_seconds=self._ended_at_seconds,
            exit_code=None if end is None else end.exit_code,
            reason="" if end is None else shortened_text(end.reason),
            last_step=self._last_step,
            first_mark=first,
            marks=tuple(islice(self._marks, first - num_left_out, None)),
        )

    def _follow(self, at_seconds: float, event: object) -> None:
        found = self._phases.observe(event)
        if found is None:
            return
        for name in sorted(found - self._open):
            self._mark(at_seconds, "phase", f"phase {name} begins")
        for name in sorted(self._open - found):
            self._mark(at_seconds, "phase", f"phase {name} ends")
        self._open = found

    def _mark(self, at_seconds: float, kind: MarkKind, text: str) -> None:
        self._marks.append(RunMark(at_seconds, kind, shortened_text(text)))
        self._num_marks += 1
