"""How good a recorded run was: curves over its steps, results of evaluations, checkpoints."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from hetero_hvd.core.view.quality import LOSS, finite, is_learning_rate
from hetero_hvd.messages import (
    CheckpointWritten,
    Evaluated,
    Logged,
    StateDivided,
    WorkersJoined,
)
from hetero_hvd.run.records.reader import Record

MAX_POINTS = 500


class Curve(msgspec.Struct, kw_only=True):
    """A number over the steps.

    Attributes:
        name: What it is.
        kind: `loss`, `evaluation`, `learning rate` or `logged`.
        steps: Applied steps of each point.
        values: Of each point; a mean where many are one, None where it is no number.
        last: The newest value itself; None: no number.
    """

    name: str
    kind: str
    steps: list[int] = msgspec.field(default_factory=list)
    values: list[float | None] = msgspec.field(default_factory=list)
    last: float | None = None


def curves_of(record: Record, max_points: int = MAX_POINTS) -> list[Curve]:
    """All that was told of the training's quality; what was done again from a checkpoint counts.

    Args:
        record: Of the run.
        max_points: Of each curve at most; neighbouring ones are averaged.
    """
    curves: dict[str, Curve] = {}
    for _, event in heapq.merge(record.events, record.logged, key=itemgetter(0)):
        if isinstance(event, WorkersJoined):
            for curve in curves.values():
                while curve.steps and curve.steps[-1] > event.applied_steps:
                    curve.steps.pop()
                    curve.values.pop()
                    curve.last = curve.values[-1] if curve.values else None
        for name, kind, step, value, last in _told(event):
            curve = curves.setdefault(f"{kind}/{name}", Curve(name=name, kind=kind))
            curve.steps.append(step)
            curve.values.append(finite(value))
            curve.last = finite(last)
    order = ("loss", "evaluation", "learning rate", "logged")
    found = sorted(curves.values(), key=lambda curve: (order.index(curve.kind), curve.name))
    return [_thinned(curve, max_points) for curve in found if curve.steps]


def quality_lines(record: Record) -> Iterator[str]:
    """In words: the last of each curve, extremes of evaluations, checkpoints, who has the state."""
    for curve in curves_of(record, max_points=2**31):
        numbers = [value for value in curve.values if value is not None]
        told = "no number" if curve.last is None else f"{curve.last:.4g}"
        line = f"{curve.name} {told} at step {curve.steps[-1]}"
        if curve.kind == "evaluation" and len(numbers) > 1:
            most, least = max(numbers), min(numbers)
            where = {value: step for step, value in zip(curve.steps, curve.values, strict=True)}
            line += (
                f" (of {len(curve.steps)} evaluations {least:.4g} at step {where[least]} is least, "
                f"{most:.4g} at step {where[most]} most)"
            )
        yield line
    written = [event for _, event in record.events if isinstance(event, CheckpointWritten)]
    if written:
        yield f"newest checkpoint: step {written[-1].step}, {written[-1].path}"
    if best := [event for event in written if event.is_best]:
        yield f"best checkpoint: step {best[-1].step}, {best[-1].path}"
    if divided := [event for _, event in record.events if isinstance(event, StateDivided)]:
        yield f"since step {divided[-1].step}: {divided[-1].words}"


def _told(event: object) -> Iterator[tuple[str, str, int, float, float]]:
    """Name, kind, step, mean and last value of all that an event tells."""
    if isinstance(event, Evaluated):
        for name, mean in event.metrics.items():
            yield name, "evaluation", event.step, mean, mean
    if isinstance(event, Logged):
        for name, found in event.values.items():
            own = "learning rate" if is_learning_rate(name) else "logged"
            kind = "loss" if name == LOSS else own
            yield name, kind, found.step, found.mean, found.last


def _thinned(curve: Curve, max_points: int) -> Curve:
    size = max(1, math.ceil(len(curve.steps) / max_points))
    if size == 1:
        return curve
    parts = [curve.values[start : start + size] for start in range(0, len(curve.values), size)]
    known = [[value for value in part if value is not None] for part in parts]
    steps = [
        curve.steps[min(at + size, len(curve.steps)) - 1] for at in range(0, len(curve.steps), size)
    ]
    values = [sum(part) / len(part) if part else None for part in known]
    return replace(curve, steps=steps, values=values)
