"""A run's state as lines of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import NamedTuple

from hetero_hvd.core.printable import printable
from hetero_hvd.core.significant import ratio_in_words
from hetero_hvd.core.view.live import LiveState, WorkerView
from hetero_hvd.core.view.live_nodes import NodeView
from hetero_hvd.core.view.quality import quality_in_words
from hetero_hvd.messages import STEP_PARTS

BAR_CHARACTERS, MIN_BAR_CHARACTERS = 30, 10
NUM_EVENTS = 8
NUM_SPARKS, NUM_LONGEST = 24, 8
SPARKS = "▁▂▃▄▅▆▇█"
BETWEEN = "  "
MIB = 2**20
GIB = 2**30


class TablePiece(NamedTuple):
    """A part of a line.

    Attributes:
        text: Without a line break.
        part: Of a step, if that is what it shows: `STEP_PARTS` has its colour.
        worker: Whose row begins with it; empty: it begins none.
    """

    text: str
    part: str = ""
    worker: str = ""


class _Column(NamedTuple):
    """One column beside the worker's name and its bar; the larger its rank, the sooner it goes."""

    heading: str
    rank: int
    cell: Callable[[WorkerView], str]
    is_left: bool = False


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"


_BEFORE_BAR = (
    _Column("state", 4, lambda worker: worker.state, is_left=True),
    _Column("share", 1, lambda worker: _number(worker.share, "{:d}")),
)
_BEHIND_BAR = (
    _Column("step", 2, lambda worker: _milliseconds(worker.step_seconds)),
    _Column("late", 5, lambda worker: _milliseconds(worker.lateness_seconds)),
    _Column("speed", 3, lambda worker: _number(worker.speed_ratio, "{:.2f}")),
    _Column("memory", 6, lambda worker: _mebibytes(worker.memory_bytes)),
    _Column("GPU", 7, lambda worker: _number(worker.device_utilization_ratio, "{:.0%}")),
    _Column("restarts", 8, lambda worker: str(worker.restarts)),
)
WIDEST = {"state": 11, "step": 7, "late": 7, "memory": 8}
"""What the cells of a column need, so that it stands still; others need what their headings do."""

SORTS: dict[str, Callable[[WorkerView], float]] = {
    "name": lambda _: 0.0,
    "share": lambda worker: -(worker.share or 0),
    "step": lambda worker: -(worker.step_seconds or 0.0),
    "late": lambda worker: -(worker.lateness_seconds or 0.0),
    "speed": lambda worker: math.inf if worker.speed_ratio is None else worker.speed_ratio,
}
"""By what the workers can be sorted: names from the first on, speeds from the slowest on, all else
from the largest on."""


def table_of(
    state: LiveState,
    *,
    num_events: int = NUM_EVENTS,
    num_columns: int | None = None,
    sort: str = "name",
) -> Iterator[str]:
    """Lines: how the run goes, who is slow and why, the workers, the last events.

    Args:
        state: The run.
        num_events: So many of the last events.
        num_columns: Of the terminal: sentences are wrapped, and columns that have no room are left
            out, the least important first; None: no line is too long.
        sort: One of `SORTS`.
    """
    for line in pieces_of(state, num_events=num_events, num_columns=num_columns, sort=sort):
        yield "".join(piece.text for piece in line).rstrip()


def pieces_of(
    state: LiveState,
    *,
    num_events: int = NUM_EVENTS,
    num_columns: int | None = None,
    sort: str = "name",
    history: Mapping[str, Sequence[float]] = {},
) -> Iterator[list[TablePiece]]:
    """The same in pieces, so that they can have colours.

    Args:
        state: See `table_of`.
        num_events: See `table_of`.
        num_columns: See `table_of`.
        sort: See `table_of`.
        history: Worker to its latest durations of a step, the oldest first, for a line of sparks.
    """

    def sentences(lines: Iterable[str]) -> Iterator[list[TablePiece]]:
        for line in map(printable, lines):
            shorter = [line] if num_columns is None else wrap(line, max(8, num_columns)) or [""]
            yield from ([TablePiece(each)] for each in shorter)

    yield from sentences(_of_run(state))
    yield from _of_workers(state, num_columns, sort, history)
    yield from _legend(num_columns)
    yield from sentences(line for node in state.nodes for line in _of_node(node))
    yield from sentences(words for _, words in state.events[-num_events:])


def _of_run(state: LiveState) -> Iterator[str]:
    speed = _number(state.samples_per_second, "{:.0f}")
    loss = _number(state.loss, "{:.4g}")
    epoch = _number(state.epoch, "{:d}")
    yield (
        f"{state.name or state.run_id}  {state.state}  step {state.step}  epoch {epoch}  "
        f"loss {loss}  {speed} samples/s"
    )
    throughput = [value for _, value in state.throughput if math.isfinite(value)][-NUM_SPARKS:]
    if throughput:
        most = max(throughput)
        yield f"samples/s of late, from 0 to {most:.0f}: {sparkline(throughput)}"
    yield from quality_in_words(state.quality)
    yield from state.verdict


def in_order(state: LiveState, sort: str) -> list[WorkerView]:
    """The workers as they are listed."""
    return sorted(state.workers, key=SORTS[sort])


def _of_workers(
    state: LiveState, num_columns: int | None, sort: str, history: Mapping[str, Sequence[float]]
) -> Iterator[list[TablePiece]]:
    width = max([len(printable(worker.name)) for worker in state.workers], default=6)
    if num_columns is not None:
        width = min(width, max(6, num_columns // 3))
    behind = (*_BEHIND_BAR, *_sparks_of(history))
    left, right, bar_width = _that_fit((*_BEFORE_BAR, *behind), width, num_columns)

    def line(name: str, cell: Callable[[_Column], str], bar: list[TablePiece]) -> list[TablePiece]:
        padding = " " * (bar_width - sum(len(piece.text) for piece in bar))
        before = [f"{name:{width}}", *(_padded(column, cell(column)) for column in left)]
        after = [padding, *(f"{BETWEEN}{_padded(column, cell(column))}" for column in right)]
        begin = TablePiece(BETWEEN.join([*before, ""]), worker=name)
        return [begin, *bar, TablePiece("".join(after))]

    yield [piece._replace(worker="") for piece in line("worker", _heading, [TablePiece("phases")])]
    longest = max((sum(_finite(worker).values()) for worker in state.workers), default=0.0)
    for worker in in_order(state, sort):
        bar = _bar(worker, longest, bar_width)
        name = printable(worker.name)
        shown = name if len(name) <= width else f"{name[: width - 1]}…"
        first, *rest = line(shown, partial(_cell, worker), bar)
        yield [first._replace(worker=worker.name), *rest]


def _cell(worker: WorkerView, column: _Column) -> str:
    return printable(column.cell(worker))


def _heading(column: _Column) -> str:
    return column.heading


def _padded(column: _Column, text: str) -> str:
    width = WIDEST.get(column.heading, len(column.heading))
    return f"{text:{width}}" if column.is_left else f"{text:>{width}}"


def _sparks_of(history: Mapping[str, Sequence[float]]) -> list[_Column]:
    """A column of how each worker's step was of late, if anything is known of it."""
    if not history:
        return []
    heading = f"{'step of late, from 0 to':{NUM_SPARKS}} {'longest':>{NUM_LONGEST}}"
    return [_Column(heading, 9, lambda worker: _sparks(history.get(worker.name, ())), is_left=True)]


def _sparks(seconds: Sequence[float]) -> str:
    """The durations of a step as heights, and the longest one, which is the highest."""
    known = [value for value in seconds if math.isfinite(value)]
    longest = _milliseconds(max(known[-NUM_SPARKS:], default=None))
    return f"{sparkline(known):{NUM_SPARKS}} {longest:>{NUM_LONGEST}}"


def _that_fit(
    columns: Sequence[_Column], name_width: int, num_columns: int | None
) -> tuple[list[_Column], list[_Column], int]:
    """The columns before and behind the bar for which there is room, and how long the bar is."""
    kept = list(columns)

    def left_for_bar() -> int:
        if num_columns is None:
            return BAR_CHARACTERS
        used = sum(len(_padded(column, "")) + len(BETWEEN) for column in kept)
        return num_columns - used - name_width - len(BETWEEN)

    while kept and left_for_bar() < MIN_BAR_CHARACTERS:
        kept.remove(max(kept, key=lambda column: column.rank))
    bar_width = max(1, min(BAR_CHARACTERS, left_for_bar()))
    return (
        [column for column in kept if column in _BEFORE_BAR],
        [column for column in kept if column not in _BEFORE_BAR],
        bar_width,
    )


def _legend(num_columns: int | None) -> Iterator[list[TablePiece]]:
    """What the letters of the bars mean, on as many lines as that needs."""
    line = [TablePiece("phases:")]
    for part in STEP_PARTS:
        words = f" {part.words}  "
        used = sum(len(piece.text) for piece in line)
        if num_columns is not None and used + len(words) + 3 > num_columns and len(line) > 1:
            yield line
            line = []
        line += [
            TablePiece(" "),
            TablePiece(part.letter, part=part.name),
            TablePiece(words.rstrip() + " "),
        ]
    yield line


def detail_of(worker: WorkerView) -> Iterator[str]:
    """All that is known of one worker; a dash is what nobody has measured."""
    yield printable(f"{worker.name}: {worker.state}, restarts {worker.restarts}")
    if worker.slow_since_step is not None:
        cause = printable(worker.slow_cause or "unknown")
        ratio = worker.expected_speed_ratio
        speed = "-" if ratio is None else ratio_in_words(ratio)
        yield f"  slow since step {worker.slow_since_step}: {cause}, {speed} of its own speed"
    whole = worker.step_seconds
    for part in STEP_PARTS:
        seconds = worker.phases.get(part.name)
        ratio = seconds / whole if seconds is not None and whole else None
        yield f"  {part.words:24} {_milliseconds(seconds):>8}  {_number(ratio, '{:.0%}'):>4}"
    facts = {
        "step": _milliseconds(whole),
        "later than the first": _milliseconds(worker.lateness_seconds),
        "reduction beside work": _milliseconds(worker.overlapped_comm_seconds),
        "share": f"{_number(worker.share, '{:d}')} samples",
        "own speed": f"{_number(worker.samples_per_second, '{:.0f}')} samples/s",
        "of the fastest": _number(worker.speed_ratio, "{:.2f}"),
        "memory": _mebibytes(worker.memory_bytes),
        "GPU": _number(worker.device_utilization_ratio, "{:.0%}"),
    }
    yield from (f"  {name:24} {value:>8}" for name, value in facts.items())


def sparkline(values: Sequence[float], num_cells: int = NUM_SPARKS) -> str:
    """The last values as heights, from nothing to the largest of them; empty without any."""
    shown = [value for value in values if math.isfinite(value)][-num_cells:]
    most = max(shown, default=0.0)
    top = len(SPARKS) - 1
    heights = (max(0.0, value) / most if most > 0 else 0.0 for value in shown)
    return "".join(SPARKS[round(top * height)] for height in heights)


def _of_node(node: NodeView) -> Iterator[str]:
    """A line, one for each of its GPUs, and one for each process there."""
    yield (
        f"{node.name}: CPU {_number(node.cpu_use_ratio, '{:.0%}')}  "
        f"memory {_used(node.memory_used_bytes, node.memory_total_bytes)}  "
        f"{_number(node.power_watts, '{:.0f} W')}"
    )
    for gpu in node.devices:
        held_back = f"  held back: {', '.join(gpu.held_back)}" if gpu.held_back else ""
        yield (
            f"  gpu {gpu.index}: {gpu.name}  {_number(gpu.use_ratio, '{:.0%}')}  "
            f"memory {_used(gpu.memory_used_bytes, gpu.memory_total_bytes)}  "
            f"{_number(gpu.temperature_celsius, '{:.0f} °C')}  "
            f"{_number(gpu.power_watts, '{:.0f} W')}{held_back}"
        )
        yield from (f"    gpu {gpu.index}: {user}" for user in gpu.used_by)


def _used(used_bytes: float | None, total_bytes: float | None) -> str:
    if used_bytes is None or total_bytes is None:
        return "-"
    return f"{used_bytes / GIB:.1f} of {total_bytes / GIB:.1f} GiB"


def _bar(worker: WorkerView, longest: float, num_cells: int) -> list[TablePiece]:
    """A letter for each cell of the longest step; rounding never makes it longer."""
    bar: list[TablePiece] = []
    seconds, done, phases = 0.0, 0, _finite(worker)
    for part in STEP_PARTS:
        seconds += phases.get(part.name, 0.0)
        end = round(num_cells * seconds / longest) if longest > 0 else 0
        if end > done:
            bar.append(TablePiece(part.letter * (end - done), part=part.name))
        done = max(done, end)
    return bar


def _finite(worker: WorkerView) -> dict[str, float]:
    """Its phases, without what no bar can show."""
    return {name: value for name, value in worker.phases.items() if math.isfinite(value)}


def _mebibytes(num_bytes: float | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / MIB:.0f} MiB"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
