"""A running job in one line that is always written anew: a fold over its events."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.core.view.live import LiveState, LiveView, WorkerView
from hetero_hvd.core.view.meanings import Words
from hetero_hvd.core.view.quality import duration
from hetero_hvd.messages import Recovered, RunEnded, WorkersJoined

MIN_SILENT_SECONDS = 5.0
SILENT_GAPS = 3.0
"""After so many times what lies between two exchanges the last step is worth a word."""

BAR_CELLS = 16
SHADES = "█▓▒░"
MAX_NAMED = 4


class RunStatus:
    """Knows how a job stands; `words` says it."""

    def __init__(self) -> None:
        self._view = LiveView(tuple)
        self._began_at_seconds: float | None = None
        self._step_at_seconds: float | None = None
        self._gap_seconds = 0.0

    def observe(self, at_seconds: float, event: Observed) -> None:
        """Take in an event.

        Args:
            at_seconds: When it happened, on any clock that `words` has, too.
            event: What happened.
        """
        self._view.observe(at_seconds, event)
        if self._began_at_seconds is None:
            self._began_at_seconds = at_seconds
        match event:
            case StepTable():
                before = self._step_at_seconds
                self._gap_seconds = 0.0 if before is None else at_seconds - before
                self._step_at_seconds = at_seconds
            case WorkersJoined() | Recovered():  # the first steps of a membership are slow
                self._step_at_seconds = at_seconds if self._step_at_seconds is not None else None
            case RunEnded():
                self._step_at_seconds = None

    def words(self, now_seconds: float, waits: Mapping[str, str | None]) -> list[Words]:
        """The pieces of the line.

        Args:
            now_seconds: On the same clock as the events.
            waits: Worker to what keeps it from training, in words; None: nothing does.
        """
        state = self._view.state()
        if state.state == "ended":
            return []
        if state.step < 0:
            return self._of_start(now_seconds, state, waits)
        pieces = [*self._of_silence(now_seconds), *self._of_training(state)]
        return pieces + [piece._replace(meaning="warning") for piece in _waiting(waits)]

    def _of_start(
        self, now_seconds: float, state: LiveState, waits: Mapping[str, str | None]
    ) -> list[Words]:
        began = self._began_at_seconds
        since = "" if began is None else f" {duration(max(0.0, now_seconds - began))}"
        num_ready = sum(worker.state in ("ready", "training") for worker in state.workers)
        pieces = [Words(f"starting{since}", "progress")]
        pieces += [Words(f"{num_ready} of {len(state.workers)} workers ready", "progress", 4)]
        under_way = [Words("the first step is under way", "progress", 2)] if state.workers else []
        return pieces + (_waiting(waits) or under_way)

    def _of_silence(self, now_seconds: float) -> list[Words]:
        if self._step_at_seconds is None:
            return []
        silent_seconds = now_seconds - self._step_at_seconds
        if silent_seconds < max(MIN_SILENT_SECONDS, SILENT_GAPS * self._gap_seconds):
            return []
        return [Words(f"last step {duration(silent_seconds)} ago", "warning")]

    def _of_training(self, state: LiveState) -> list[Words]:
        members = [worker for worker in state.workers if worker.state == "training"]
        pieces = [Words(f"step {state.step}", "good")]
        if (total := state.quality.total_steps) is not None:
            ratio = min(1.0, (state.step + 1) / max(1, total))
            pieces.append(Words(f"{ratio:.0%}", "progress", 4))
        if state.quality.remaining_seconds is not None:
            pieces.append(Words(f"{duration(state.quality.remaining_seconds)} left", "progress", 2))
        if state.loss is not None:
            pieces.append(Words(f"loss {state.loss:.4g}", "progress", 5))
        if state.samples_per_second is not None:
            pieces.append(Words(f"{state.samples_per_second:.0f} samples/s", "progress", 3))
        pieces += [
            Words(f"{worker.name} slow: {_cause(worker)}", "warning", 1)
            for worker in _slow(members)
        ]
        shares = [(worker.name, worker.share) for worker in members if worker.share is not None]
        if shares:
            pieces.append(Words(share_bar([share for _, share in shares]), "progress", 6))
            named = _named([f"{name} {share}" for name, share in shares])
            pieces.append(Words(named, "progress", 7))
        return pieces


def share_bar(shares: list[int], num_cells: int = BAR_CELLS) -> str:
    """The shares of one batch side by side, each in another shade than its neighbour.

    Args:
        shares: Samples of each worker, at least 0.
        num_cells: Characters of the whole.
    """
    total, bar, done = sum(shares), "", 0
    for index, share in enumerate(shares):
        done += share
        end = round(num_cells * done / total) if total else 0
        bar += SHADES[index % len(SHADES)] * (end - len(bar))
    return bar


def _slow(workers: list[WorkerView]) -> list[WorkerView]:
    return [worker for worker in workers if worker.slow_since_step is not None]


def _cause(worker: WorkerView) -> str:
    return worker.slow_cause or "unknown"


def _waiting(waits: Mapping[str, str | None]) -> list[Words]:
    """A piece for each thing that some wait for, the one that most wait for first."""
    groups: dict[str, list[str]] = {}
    for name, what in waits.items():
        if what is not None:
            groups.setdefault(what, []).append(name)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [Words(f"{what}: {_named(names)}", "progress", 3) for what, names in ordered]


def _named(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
