"""The plots of a run: a fold over its events, and one description for all who draw them.

The live page asks for it again and again, a run's report has it inside, matplotlib draws it into
files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Literal

import msgspec

from hetero_hvd.core.step_table import Observed, StepTable
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.core.view.plots.bounded_series import BoundedSeries, PlotRange, Points
from hetero_hvd.core.view.quality import LOSS, is_learning_rate
from hetero_hvd.messages import (
    DRAINED,
    STEP_PARTS,
    BatchPlan,
    Crashed,
    Evaluated,
    GuardReported,
    Logged,
    OutOfMemory,
    SetAsideReported,
    StallReported,
    StragglerReported,
    WorkerQuarantined,
    WorkersJoined,
)

MAX_CURVES = 100
"""Of a kind: what a script logs or evaluates under more names is not plotted."""

MAX_CURVE_CELLS = 2048
MAX_MARKS = 500
"""Plans, and as many of all the rest."""

MAX_VALUES = 2**14
"""Of a plot: with many lines each gets fewer points."""

MAX_PHASE_VALUES = 2**15
"""Of each phase, all workers together."""

MIN_INTERVALS = 50
FEW_WORKERS = 3
"""So many have their phases beside each other."""

PER_WORKER = ("shares", "own")
"""Keys of plots with a line for each worker, beside those of phases."""

LOSS_KEYS = ("loss", f"loss {LOSS}")
"""Of the one plot of the training loss: told by the exchange, or by a trainer's own log."""

GROUPS = 80
"""So many plans one beside the other can be told apart in a plot."""

MarkKind = Literal["reset", "plan", "straggler", "stall", "fault"]
QUIET = "#8c96a0"
"""Of lines that are not the first thing to be seen, by day and by night."""

_UNITS = {"loss": "mean over the batch", "learning rate": ""}
_SHARE, _OWN, _SPEED = "share ", "own ", "speed"
_parts_of = attrgetter(*(part.column for part in STEP_PARTS))


class PlotLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a plot.

    Attributes:
        label: For people.
        values: One for each point of the plot; None: not measured.
        colour: As CSS and matplotlib take it; empty: the next one of the page.
    """

    label: str
    values: list[float | None]
    colour: str = ""


class RunPlot(msgspec.Struct, frozen=True, kw_only=True):
    """One plot.

    Attributes:
        key: Tells it from the others, whenever they are asked for.
        title: What it shows.
        unit: Of its values; empty: none.
        steps: Of each point, in order.
        at_unix_seconds: Of each point; empty where several runs are in one plot.
        lines: At least one.
        is_stacked: Whether its lines are parts of a whole.
        has_zero: Whether zero is in it: a ratio of heights means something.
    """

    key: str
    title: str
    unit: str
    steps: list[int]
    at_unix_seconds: list[float]
    lines: list[PlotLine]
    is_stacked: bool = False
    has_zero: bool = False


class PlotMark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, on the axis of all plots.

    Attributes:
        at_unix_seconds: When.
        step: At which step.
        kind: `reset`: other members; `plan`: other shares; `straggler`; `stall`; `fault`.
        words: For people.
        count: So many plans in a row, which are too near to each other to be told apart.
    """

    at_unix_seconds: float
    step: int
    kind: MarkKind
    words: str
    count: int = 1


class PlotsView(msgspec.Struct, frozen=True, kw_only=True):
    """All that is drawn.

    Attributes:
        workers: Those whose phases can be shown.
        first_step: Of the run; None: no step is known.
        last_step: The same.
        first_unix_seconds: When that was heard of.
        last_unix_seconds: The same.
        plots: In their order.
        marks: In their order.
        left_out: Why another run that was to be in them is not, in words.
    """

    workers: list[str]
    first_step: int | None
    last_step: int | None
    first_unix_seconds: float | None
    last_unix_seconds: float | None
    plots: list[RunPlot]
    marks: list[PlotMark]
    left_out: list[str] = []


class RunPlots:
    """Folds events; memory is bounded, cost of an event O(workers)."""

    def __init__(self) -> None:
        self._job = BoundedSeries()
        self._curves: dict[tuple[str, str], BoundedSeries] = {}
        self._marks: deque[PlotMark] = deque(maxlen=MAX_MARKS)
        self._plans: deque[PlotMark] = deque(maxlen=MAX_MARKS)
        self._workers: dict[str, tuple[str, ...]] = {}
        self._shares: object = None
        self._begin: tuple[int, float] | None = None
        self._end = (0, 0.0)

    def observe(self, at_unix_seconds: float, event: Observed) -> None:
        """Take in an event; an observer of the bus.

        Args:
            at_unix_seconds: When it happened, seconds since 1970.
            event: What happened.
        """
        match event:
            case StepTable():
                self._timed(at_unix_seconds, event)
            case Evaluated():
                for name, mean in event.metrics.items():
                    curve = self._curve("evaluation", name, at_unix_seconds, event.step)
                    if curve is not None:
                        curve.add(at_unix_seconds, event.step, {name: mean})
            case Logged():
                for name, found in event.values.items():
                    own = "learning rate" if is_learning_rate(name) else "logged"
                    kind = "loss" if name == LOSS else own
                    ends = found.minimum, found.maximum
                    curve = self._curve(kind, name, at_unix_seconds, found.step)
                    if curve is not None:
                        curve.add(at_unix_seconds, found.step, {name: found.mean}, ends=ends)
            case WorkersJoined():
                self._job.cut(event.applied_steps - 1)
                for curve in self._curves.values():
                    curve.cut(event.applied_steps)
            case _:
                pass
        self._mark(at_unix_seconds, event)

    def _timed(self, at_unix_seconds: float, table: StepTable) -> None:
        if table.is_first:  # that has the start in it
            return
        values = {_SPEED: table.samples_per_second, LOSS: table.event.loss}
        is_whole = table.is_whole  # the last step of an epoch may have fewer samples
        for worker, row in table.measured.items():
            name = str(worker)
            share, own, *parts = self._workers.get(name) or self._columns(name)
            if is_whole:
                values[share] = row.local_batch_size
            values[own] = 1e3 * row.own_seconds
            for part, seconds in zip(parts, _parts_of(row), strict=True):
                values[part] = 1e3 * seconds
        self._reached(at_unix_seconds, table.step)
        self._job.add(at_unix_seconds, table.step, values, table.num_steps)

    def _columns(self, worker: str) -> tuple[str, ...]:
        parts = (f"{part.name} {worker}" for part in STEP_PARTS)
        return self._workers.setdefault(worker, (_SHARE + worker, _OWN + worker, *parts))

    def _curve(
        self, kind: str, name: str, at_unix_seconds: float, step: int
    ) -> BoundedSeries | None:
        """The one of a name, which has come so far; None: there are too many already."""
        known = sum(other == kind for other, _ in self._curves)
        if (kind, name) not in self._curves and known >= MAX_CURVES:
            return None
        self._reached(at_unix_seconds, step)
        return self._curves.setdefault((kind, name), BoundedSeries(MAX_CURVE_CELLS))

    def _reached(self, at_unix_seconds: float, step: int) -> None:
        self._begin = self._begin or (step, at_unix_seconds)
        self._end = step, at_unix_seconds

    def _mark(self, at_unix_seconds: float, event: object) -> None:
        kind: MarkKind
        step = getattr(event, "step", self._end[0])
        match event:
            case WorkersJoined():
                kind, step = "reset", event.applied_steps
            case SetAsideReported():
                kind = "reset"
            case BatchPlan():
                shares = event.workers, event.local_batch_sizes
                # No step is taken by a plan that measures; one may change only the exchange.
                if event.calibration_ratio or shares == self._shares:
                    return
                self._shares = shares
                kind, step = "plan", event.from_step
            case StragglerReported():
                kind = "straggler"
            case StallReported():
                kind = "stall"
            case WorkerQuarantined(reason=reason) if reason == DRAINED:
                kind = "reset"
            case Crashed() | OutOfMemory() | WorkerQuarantined() | GuardReported():
                kind = "fault"
            case _:
                return
        words = event_in_words(event) or ""
        marks = self._plans if kind == "plan" else self._marks
        marks.append(PlotMark(at_unix_seconds=at_unix_seconds, step=step, kind=kind, words=words))

    @property
    def workers(self) -> list[str]:
        """All that have taken a step."""
        return sorted(self._workers)

    def view(self, wanted: PlotRange, workers: Sequence[str] | None = None) -> PlotsView:
        """What is drawn of a part of the run.

        Args:
            wanted: Which part.
            workers: Whose phases; None: everybody's, where they are few, else the first one's.
        """
        begin = self._begin or (None, None)
        end = self._end if self._begin else (None, None)
        known = self.workers
        if workers is None:
            workers = known if len(known) <= FEW_WORKERS else known[:1]
        shown = [name for name in workers if name in self._workers]
        few = wanted._replace(
            num_intervals=min(
                wanted.num_intervals, max(MIN_INTERVALS, MAX_PHASE_VALUES // max(1, len(shown)))
            )
        )
        return PlotsView(
            workers=known,
            first_step=begin[0],
            last_step=end[0],
            first_unix_seconds=begin[1],
            last_unix_seconds=end[1],
            plots=[
                *self._quality(wanted),
                self._plot(wanted, "speed", "Throughput", "samples/s", {_SPEED: "all workers"}),
                self._plot(wanted, "shares", "Shares", "samples per step", _of_each(_SHARE, known)),
                self._plot(wanted, "own", "Own time of a step", "ms", _of_each(_OWN, known)),
                *(self._phases(few, name) for name in shown),
            ],
            marks=_grouped((*self._marks, *self._plans), wanted, begin[0] or 0, end[0] or 0),
        )

    def _quality(self, wanted: PlotRange) -> list[RunPlot]:
        """Loss first, then evaluations, learning rates, and what the script logs."""
        order = ("loss", "evaluation", "learning rate", "logged")
        found = sorted(self._curves, key=lambda key: (order.index(key[0]), key[1]))
        plots = [] if any(kind == "loss" for kind, _ in found) else [self._loss(wanted)]
        for kind, name in found:
            title = "Loss" if kind == "loss" else name.replace("_", " ")
            plots.append(
                self._plot(
                    wanted,
                    f"{kind} {name}",
                    title,
                    _UNITS.get(kind, kind),
                    {name: title},
                    of=self._curves[kind, name],
                )
            )
        return plots

    def _loss(self, wanted: PlotRange) -> RunPlot:
        """Of the last step of each exchange: what a script without our trainer tells."""
        return self._plot(wanted, LOSS_KEYS[0], "Loss", _UNITS["loss"], {LOSS: "Loss"})

    def _phases(self, wanted: PlotRange, worker: str) -> RunPlot:
        columns = {f"{part.name} {worker}": part.words for part in STEP_PARTS}
        colours = {part.words: part.colour for part in STEP_PARTS}
        return self._plot(
            wanted,
            f"phases {worker}",
            f"Phases of {worker}",
            "ms per step",
            columns,
            colours=colours,
        )

    def _plot(
        self,
        wanted: PlotRange,
        key: str,
        title: str,
        unit: str,
        columns: dict[str, str],
        *,
        of: BoundedSeries | None = None,
        colours: dict[str, str] | None = None,
    ) -> RunPlot:
        """A plot of some columns, by their labels; one with colours is stacked."""
        most = max(MIN_INTERVALS, MAX_VALUES // (2 * max(1, len(columns))))
        narrow = wanted._replace(num_intervals=min(wanted.num_intervals, most))
        series = self._job if of is None else of
        points = series.points(narrow, [*columns], is_mean=colours is not None or of is not None)
        lines = [
            PlotLine(label=label, values=points.values[name], colour=(colours or {}).get(label, ""))
            for name, label in columns.items()
        ]
        if of is not None:
            lines += _extremes(points, *columns)
        return RunPlot(
            key=key,
            title=title,
            unit=unit,
            steps=points.steps,
            at_unix_seconds=points.at_unix_seconds,
            lines=lines,
            is_stacked=colours is not None,
            has_zero=of is None and title != "Loss",
        )


def _extremes(points: Points, name: str) -> list[PlotLine]:
    """Of that of which a point is the mean, where they are two: no peak is lost in it."""
    ends = {"lowest": points.lows[name], "highest": points.highs[name]}
    if ends["lowest"] == ends["highest"]:
        return []
    return [PlotLine(label=label, values=each, colour=QUIET) for label, each in ends.items()]


def _of_each(column: str, workers: Iterable[str]) -> dict[str, str]:
    return {f"{column}{worker}": worker for worker in workers}


def _grouped(
    marks: Iterable[PlotMark], wanted: PlotRange, first_step: int, last_step: int
) -> list[PlotMark]:
    """Those in the range; plans in a row that nobody could tell apart are one."""
    by_step = wanted.axis == "step"

    def place(mark: PlotMark) -> float:
        return mark.step if by_step else mark.at_unix_seconds

    low = wanted.begin if wanted.begin is not None else float("-inf")
    high = wanted.end if wanted.end is not None else float("inf")
    inside = sorted((mark for mark in marks if low <= place(mark) <= high), key=place)
    if not inside:
        return []
    width = (place(inside[-1]) - place(inside[0])) / GROUPS
    if wanted.begin is None and by_step:
        width = max(width, (last_step - first_step) / GROUPS)
    found: list[PlotMark] = []
    began = 0.0
    for mark in inside:
        is_same = found and mark.kind == found[-1].kind == "plan" and place(mark) - began < width
        if is_same:
            found[-1] = msgspec.structs.replace(mark, count=found[-1].count + 1)
        else:
            found.append(mark)
            began = place(mark)
    return found
