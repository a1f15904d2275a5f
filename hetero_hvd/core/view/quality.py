"""How good a training is as it stands: evaluations, logged values, checkpoints, time left."""

from __future__ import annotations

import math
from collections import deque

import msgspec

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.messages import CheckpointWritten, Evaluated, Logged, RunEnded, WorkersJoined

MAX_POINTS = 60
"""Of the pace, which follows what the training does now."""

LOSS = "loss"
RATE = "learning_rate"


class QualityView(msgspec.Struct, kw_only=True):
    """What a training has achieved; plain data, NaN and infinity as None.

    Attributes:
        evaluated_step: Applied steps at the newest evaluation; None: there was none.
        evaluation: Metric to its newest result.
        learning_rates: By group of parameters; one where they are alike.
        logged: Name to the newest value, of what the script logs.
        checkpoint_step: Applied steps of the newest checkpoint; None: there is none.
        best_checkpoint_step: Of the best one by the metric that the job names.
        best_checkpoint_path: Where that is.
        remaining_seconds: Until the last epoch is done, at the pace of late; None: not known.
        total_steps: Applied steps when the last epoch is done; None: not known.
        progress_ratio: Part of them that is done, 0 to 1; None: not known.
    """

    evaluated_step: int | None = None
    evaluation: dict[str, float | None] = msgspec.field(default_factory=dict)
    learning_rates: list[float | None] = msgspec.field(default_factory=list)
    logged: dict[str, float | None] = msgspec.field(default_factory=dict)
    checkpoint_step: int | None = None
    best_checkpoint_step: int | None = None
    best_checkpoint_path: str = ""
    remaining_seconds: float | None = None
    total_steps: int | None = None
    progress_ratio: float | None = None


def is_learning_rate(name: str) -> bool:
    """Whether a name is that of the trainer's own, of all groups or of one."""
    own, _, group = name.partition(".")
    return own == RATE and (not group or group.isdecimal())


def progress_ratio(event: Logged) -> float | None:
    """Part of all steps that is done, 0 to 1; None: not known."""
    return event.step / event.total_steps if event.total_steps else None


class Quality:
    """Folds a run's events.

    Attributes:
        view: As it stands.
    """

    def __init__(self) -> None:
        self.view = QualityView()
        self._pace: deque[tuple[float, int]] = deque(maxlen=MAX_POINTS)

    def observe(self, at_unix_seconds: float, event: Observed) -> None:
        """Take in an event.

        Args:
            at_unix_seconds: When it happened, seconds since 1970.
            event: What happened.
        """
        view = self.view
        match event:
            case WorkersJoined():
                self._pace.clear()
            case StepTable():
                self._pace.append((at_unix_seconds, event.step))
            case Evaluated():
                view.evaluated_step = event.step
                for name, mean in event.metrics.items():
                    view.evaluation[name] = finite(mean)
            case Logged():
                self._logged(event)
            case CheckpointWritten():
                view.checkpoint_step = event.step
                if event.is_best:
                    view.best_checkpoint_step = event.step
                    view.best_checkpoint_path = event.path
            case RunEnded():
                view.remaining_seconds = None

    def _logged(self, event: Logged) -> None:
        view = self.view
        newest = {name: finite(found.last) for name, found in event.values.items()}
        rates = {name: newest[name] for name in newest if is_learning_rate(name)}
        if rates:
            view.learning_rates = list(rates.values())
        own = {LOSS, *rates}
        view.logged |= {name: value for name, value in newest.items() if name not in own}
        view.remaining_seconds = self._remaining_seconds(event.steps_to_take)
        view.total_steps = event.total_steps
        view.progress_ratio = progress_ratio(event)

    def _remaining_seconds(self, num_steps: int) -> float | None:
        if num_steps < 0 or len(self._pace) < 2:  # noqa: PLR2004 - a pace has two ends
            return None
        (first_at, first), (last_at, last) = self._pace[0], self._pace[-1]
        if last <= first or last_at <= first_at:
            return None
        return num_steps * (last_at - first_at) / (last - first)


def finite(value: float) -> float | None:
    """The value, or None where it is no number or was not measured."""
    return value if math.isfinite(value) else None


def quality_in_words(view: QualityView) -> list[str]:
    """A few short lines."""
    parts = [f"learning rate {' '.join(map(_number, view.learning_rates))}"]
    parts = parts if view.learning_rates else []
    if view.remaining_seconds is not None:
        parts.append(f"{duration(view.remaining_seconds)} left")
    lines = ["  ".join(parts)]
    if view.evaluation:
        found = "  ".join(f"{name} {_number(value)}" for name, value in view.evaluation.items())
        lines.append(f"evaluated at step {view.evaluated_step}: {found}")
    if view.logged:
        found = "  ".join(f"{name} {_number(value)}" for name, value in view.logged.items())
        lines.append(f"logged: {found}")
    if view.checkpoint_step is not None:
        best = view.best_checkpoint_step
        told = f"; best: step {best}, {view.best_checkpoint_path}" if best is not None else ""
        lines.append(f"checkpoint: step {view.checkpoint_step}{told}")
    return list(filter(None, lines))


def duration(seconds: float) -> str:
    """A time in words, rounded to what one wants to know."""
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _number(value: float | None) -> str:
    return "no number" if value is None else f"{value:.4g}"
