"""Series over the steps of a run in bounded memory, and thinned to the pixels of a plot.

Whatever the length of a run, what is remembered of it has a limit: where there are too many rows,
neighbours become one. A row keeps the smallest and the largest value of each column, in their
order, and the mean, so that no peak is ever lost; only when exactly it was gets less certain. A
plot gets at most two points for each of its pixels: the extremes there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_CELLS = 2**18
"""Rows times columns of one series: about 4 MB."""

MAX_ROWS, MIN_ROWS = 4096, 64
LEAST_WIDTH = 1e-6
"""Of a pixel, steps or seconds."""

DIGITS = 6
"""Of a value in a plot: what single precision has."""

Axis = Literal["step", "time"]


class PlotRange(NamedTuple):
    """What part of a run a plot shows.

    Attributes:
        axis: Over what.
        begin: First step, or seconds since 1970; None: from the first row on.
        end: The last one, included; None: up to the last row.
        num_intervals: Equal parts, one for each pixel, >= 1.
    """

    axis: Axis = "step"
    begin: float | None = None
    end: float | None = None
    num_intervals: int = 500


class Points(NamedTuple):
    """What a plot draws; all lists are as long as each other.

    Attributes:
        steps: Of each point.
        at_unix_seconds: When it was heard of.
        values: Column to its values; None: not measured.
        lows: Column to the smallest one of what each value is the mean of; None where it is no
            mean.
        highs: Column to the largest one.
    """

    steps: list[int]
    at_unix_seconds: list[float]
    values: dict[str, list[float | None]]
    lows: dict[str, list[float | None]]
    highs: dict[str, list[float | None]]


class _Rows(NamedTuple):
    """Neighbouring steps, n of them; all but the first six planes have c columns, too."""

    first_step: NDArray[Any]
    last_step: NDArray[Any]
    first_at: NDArray[Any]
    last_at: NDArray[Any]
    num_steps: NDArray[Any]
    num_additions: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    is_low_first: NDArray[Any]
    mean: NDArray[Any]

    @classmethod
    def unknown(cls, num_rows: int, num_columns: int) -> _Rows:
        """Rows in which nothing was measured."""
        planes = [np.zeros(num_rows) for _ in range(6)]
        cells = (num_rows, num_columns)
        low, high, mean = (np.full(cells, np.nan, dtype=np.float32) for _ in range(3))
        return cls._make([*planes, low, high, np.ones(cells, dtype=bool), mean])

    def part(self, rows: slice) -> _Rows:
        """Some of them, which share their memory."""
        return _Rows(*(plane[rows] for plane in self))

    def put(self, found: _Rows) -> None:
        """Overwrite the first ones, in the columns that are found."""
        for plane, new in zip(self, found, strict=True):
            plane[tuple(map(slice, new.shape))] = new

    def chosen(self, columns: Sequence[int]) -> _Rows:
        """With some of the columns."""
        return _Rows(*(plane[:, columns] if plane.ndim > 1 else plane for plane in self))

    def grouped(self, begins: NDArray[Any]) -> _Rows:
        """Neighbours as one: n > 0 rows in groups that begin at these."""
        ends = np.append(begins[1:], len(self.low)) - 1
        low, high = np.fmin.reduceat(self.low, begins), np.fmax.reduceat(self.high, begins)
        weights = self.num_steps[:, None] * np.isfinite(self.mean)
        sums = np.add.reduceat(weights * np.nan_to_num(self.mean), begins)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = sums / np.add.reduceat(weights, begins)
        return _Rows(
            self.first_step[begins],
            self.last_step[ends],
            self.first_at[begins],
            self.last_at[ends],
            np.add.reduceat(self.num_steps, begins),
            np.add.reduceat(self.num_additions, begins),
            low,
            high,
            self._is_low_first(low, high, begins, ends),
            mean,
        )

    def _is_low_first(
        self, low: NDArray[Any], high: NDArray[Any], begins: NDArray[Any], ends: NDArray[Any]
    ) -> NDArray[Any]:
        """Of each group, whether its smallest value came before its largest."""
        num_rows = len(self.low)
        sizes, number = ends - begins + 1, np.arange(num_rows)[:, None]
        where_low, where_high = (
            np.minimum.reduceat(
                np.where(plane == np.repeat(extreme, sizes, axis=0), number, num_rows), begins
            )
            for plane, extreme in ((self.low, low), (self.high, high))
        )
        row = np.minimum(where_low, num_rows - 1)
        in_one_row = np.take_along_axis(self.is_low_first, row, axis=0)
        return np.asarray(np.where(where_low == where_high, in_one_row, where_low < where_high))


class BoundedSeries:
    """Values of some columns over the steps of a run.

    Args:
        max_cells: See `MAX_CELLS`.
    """

    def __init__(self, max_cells: int = MAX_CELLS) -> None:
        self._max_cells = max_cells
        self._places: dict[str, int] = {}
        self._rows = _Rows.unknown(MIN_ROWS, 0)
        self._num_rows = 0

    @property
    def columns(self) -> Sequence[str]:
        """Their names, in the order in which they came."""
        return tuple(self._places)

    @property
    def _known(self) -> _Rows:
        return self._rows.part(slice(self._num_rows))

    def add(
        self,
        at_unix_seconds: float,
        step: int,
        values: Mapping[str, float],
        num_steps: int = 1,
        ends: tuple[float, float] | None = None,
    ) -> None:
        """Take in what was measured at the end of some steps; mean cost O(columns).

        Args:
            at_unix_seconds: When it was heard of.
            step: The last of them.
            values: Column to value; what is not finite, or exceeds single precision, was not
                measured.
            num_steps: So many are in it, which is the weight of the means, >= 1.
            ends: Smallest and largest value, where each value is the mean of several; None: it is
                one.
        """
        self._make_room(values)
        rows, row = self._rows, self._num_rows
        # In order, whoever sets a clock back: a line goes from the left to the right.
        before, at_before = (rows.last_step[row - 1], rows.last_at[row - 1]) if row else (step, 0.0)
        rows.first_step[row] = rows.last_step[row] = max(step, before)
        rows.first_at[row] = rows.last_at[row] = max(at_unix_seconds, at_before)
        rows.num_steps[row], rows.num_additions[row] = num_steps, 1
        told = _measured(np.fromiter(values.values(), dtype=np.float64, count=len(values)))
        low, high = (told, told) if ends is None else _measured(np.array(ends))
        places = [self._places[name] for name in values]
        for plane, measured in ((rows.low, low), (rows.high, high), (rows.mean, told)):
            plane[row] = np.nan
            plane[row, places] = measured
        rows.is_low_first[row] = True
        if (
            ends is not None and row
        ):  # they lie between the row before and this one; it rose or fell
            rows.first_step[row] = before
            rows.first_at[row] = at_before
            rows.is_low_first[row] = ~(rows.mean[row] < rows.mean[row - 1])
        self._num_rows += 1

    def cut(self, step: int) -> None:
        """Forget what came after a step: it was lost, and is done again.

        A row that reaches beyond it goes as a whole.
        """
        self._num_rows = int(np.searchsorted(self._known.last_step, step, side="right"))

    def _make_room(self, names: Mapping[str, float]) -> None:
        """For new columns, and for one more row."""
        if not names.keys() <= self._places.keys():
            for name in names:
                self._places.setdefault(name, len(self._places))
        most = self._max_cells // max(1, len(self._places))
        most = min(MAX_ROWS, max(MIN_ROWS, most))
        if self._num_rows >= most:
            self._compact(most // 2)
        num_rows, num_columns = self._rows.low.shape
        is_full, is_narrow = self._num_rows == num_rows, num_columns < len(self._places)
        if is_full or is_narrow:
            num_rows = min(most, 2 * num_rows) if is_full else min(most, num_rows)
            spare = len(self._places) // 4 if is_narrow else 0  # they may come one by one
            found = _Rows.unknown(num_rows, max(num_columns, len(self._places) + spare))
            found.put(self._known)
            self._rows = found

    def _compact(self, max_rows: int) -> None:
        """So many rows at most, each of as many additions as the others but for the last one."""
        known = self._known
        before = np.cumsum(known.num_additions) - known.num_additions
        size = 2.0 ** math.ceil(math.log2((before[-1] + known.num_additions[-1]) / max_rows))
        begins = np.flatnonzero(np.diff(before // size, prepend=-1))
        self._rows.put(known.grouped(begins))
        self._num_rows = len(begins)

    def points(self, wanted: PlotRange, columns: Sequence[str], *, is_mean: bool = False) -> Points:
        """What a plot shows of some columns.

        Args:
            wanted: Which part of the run.
            columns: Their names; of one that is not known nothing was measured.
            is_mean: Whether the mean of each pixel is wanted and not its extremes.
        """
        known = self._known
        is_step = wanted.axis == "step"
        first = known.first_step if is_step else known.first_at
        last = known.last_step if is_step else known.last_at
        if not self._num_rows:
            nothing: dict[str, list[float | None]] = {name: [] for name in columns}
            return Points([], [], nothing, nothing, nothing)
        begin = float(first[0]) if wanted.begin is None else wanted.begin
        end = float(last[-1]) if wanted.end is None else wanted.end
        # One row more on either side, so that lines go on to the edges.
        left = max(0, int(np.searchsorted(last, begin)) - 1)
        right = max(left + 1, int(np.searchsorted(first, end, side="right")) + 1)
        width = max((end - begin) / wanted.num_intervals, LEAST_WIDTH)
        pixels = np.floor((last[left:right] - begin) / width)
        begins = np.flatnonzero(np.diff(pixels, prepend=-np.inf))
        names = [name for name in columns if name in self._places]
        shown = known.part(slice(left, right)).chosen([self._places[name] for name in names])
        found = _drawn(shown.grouped(begins), names, is_mean=is_mean)
        unknown: list[float | None] = [None] * len(found.steps)

        def of_all(known: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
            return {name: known.get(name, unknown) for name in columns}

        values, lows, highs = map(of_all, (found.values, found.lows, found.highs))
        return found._replace(values=values, lows=lows, highs=highs)


def _drawn(rows: _Rows, names: Sequence[str], *, is_mean: bool) -> Points:
    """A point for the mean of each row; or two for its extremes, where they are two."""
    steps, times, columns = rows.last_step, rows.last_at, rows.mean
    if not is_mean:
        is_flat = ~np.any(rows.low < rows.high, axis=1)
        is_point = np.column_stack((~is_flat, np.ones(len(is_flat), dtype=bool))).ravel()

        def in_turn(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
            both = np.stack((one, other), axis=1)
            return np.asarray(both.reshape(-1, *both.shape[2:])[is_point])

        steps, times = in_turn(rows.first_step, steps), in_turn(rows.first_at, times)
        columns = in_turn(
            np.where(rows.is_low_first, rows.low, rows.high),
            np.where(rows.is_low_first, rows.high, rows.low),
        )
    low, high = (_by_name(names, each) if is_mean else {} for each in (rows.low, rows.high))
    places = steps.astype(int).tolist(), np.round(times, 3).tolist()
    return Points(*places, _by_name(names, columns), low, high)


def _by_name(names: Sequence[str], columns: NDArray[Any]) -> dict[str, list[float | None]]:
    told = zip(names, _told(columns).T.tolist(), strict=True)
    return {name: [None if math.isnan(v) else v for v in values] for name, values in told}


def _measured(values: NDArray[Any]) -> NDArray[Any]:
    """NaN for what single precision does not hold."""
    return np.asarray(np.where(np.abs(values) < np.finfo(np.float32).max, values, np.nan))


def _told(values: NDArray[Any]) -> NDArray[Any]:
    """Rounded to the digits that they have."""
    exact = values.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        digits = DIGITS - 1 - np.floor(np.log10(np.abs(exact)))
        factor = 10.0 ** np.clip(np.nan_to_num(digits), -300, 300)
        rounded = np.where(np.isfinite(factor), np.round(exact * factor) / factor, exact)
    return np.asarray(np.where(np.isfinite(exact) & (exact != 0), rounded, exact))
