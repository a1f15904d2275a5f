"""Figures over time for a plot: the smallest and largest value of each pixel, gaps as gaps.

What is thinned may be thinned again, alone or together with its neighbours: the result is that of
all samples at once. So a week is read piece by piece, and never is all of it in the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from hetero_hvd.core.recording.columns import Doubles, Integers
from hetero_hvd.core.recording.device_figures import GAP_INTERVALS
from hetero_hvd.core.recording.device_series import THE_NODE
from hetero_hvd.core.recording.segments import Flags, NumbersOverTime, Recorded
from hetero_hvd.core.recording.sessions import MAX_EVERY_SECONDS
from hetero_hvd.core.recording.timeline import MICROSECONDS

LONGEST_STEP = round(GAP_INTERVALS * MAX_EVERY_SECONDS * MICROSECONDS)
"""Between two samples of a node, whatever their rate, microseconds."""

_NUM_BEFORE = 3
"""So many samples before the first one tell how often they came."""


class PlottedSeries(NamedTuple):
    """Values of some devices at common times.

    Attributes:
        times: Microseconds by the hub's clock, in order, (n,).
        is_after_gap: Whether nothing is known of the time before each, (n,).
        values: Device to its values, (n,); NaN: not told.
    """

    times: Integers
    is_after_gap: Flags
    values: dict[str, Doubles]


class PlotWindow(NamedTuple):
    """The time that a plot shows.

    Attributes:
        begin: In it, microseconds by the hub's clock.
        end: Not in it, later.
        num_intervals: Equal parts, one for each pixel.
    """

    begin: int
    end: int
    num_intervals: int

    @property
    def width(self) -> int:
        """Of an interval, microseconds; the last one may be shorter."""
        return -((self.begin - self.end) // self.num_intervals)


Record = Mapping[str, Any]
"""A sample as MessagePack has it; in a piece its doubles are None, see `decode_numbers`."""


def figure_places(sample: Record, figure: str) -> dict[str, str]:
    """Where a figure is in a sample of a piece, by device: `THE_NODE`, or the index of a GPU.

    Args:
        sample: Without its doubles.
        figure: Name of a field of `NodeSampled` or `DeviceSample`, or a series of a program.
    """
    return {device: place for device, place, value in _told(sample, figure) if value is None}


def waiting_numbers(frames: Sequence[Recorded], figure: str, figures: set[str]) -> NumbersOverTime:
    """A figure of samples that are in no piece yet, by device.

    Args:
        frames: At least one.
        figure: As for `figure_places`.
        figures: Gets the names of all that there are: an agent tells them in each sample, a program
            as it likes.
    """
    values: dict[str, Doubles] = {}
    for number, frame in enumerate(frames):  # one by one: all of an hour would fill the memory
        sample = msgspec.msgpack.decode(frame.sample)
        if "values" in sample or number == len(frames) - 1:
            figures.update(figures_in(sample))
        for device, _, value in _told(sample, figure):
            if isinstance(value, float):
                values.setdefault(device, np.full(len(frames), np.nan))[number] = value
    return NumbersOverTime(
        np.array([frame.sequence for frame in frames]),
        np.array([frame.at_microseconds for frame in frames]),
        values,
    )


def told_only(found: NumbersOverTime, num_before: int) -> tuple[NumbersOverTime, int]:
    """Without the samples in which the figure is not told, as a program tells what it likes.

    Those that are left have numbers as if there were no others, so that only what was lost is a
    gap.

    Args:
        found: Of a stream.
        num_before: So many were left out of what came before.

    Returns:
        The rest, and how many were left out so far.
    """
    is_told = np.zeros(len(found.times), dtype=bool)
    for column in found.values.values():
        is_told |= np.isfinite(column)
    num_left_out = num_before + np.cumsum(~is_told)
    values = {device: column[is_told] for device, column in found.values.items()}
    numbers = (found.sequences - num_left_out)[is_told]
    last = int(num_left_out[-1]) if len(is_told) else num_before
    return NumbersOverTime(numbers, found.times[is_told], values), last


def _told(sample: Record, figure: str) -> Iterator[tuple[str, str, Any]]:
    """Device, place and value."""
    for begin, record in (("", sample), ("/values", sample.get("values", {}))):
        if figure in record:
            yield THE_NODE, f"{begin}/{figure}", record[figure]
    for number, gpu in enumerate(sample.get("devices", ())):
        if figure in gpu:
            yield str(gpu["index"]), f"/devices/{number}/{figure}", gpu[figure]


def figures_in(sample: Record) -> set[str]:
    """Names of all figures of a sample, with or without its doubles."""
    records = [sample, sample.get("values", {}), *sample.get("devices", ())]
    found = {
        name
        for record in records
        for name, value in record.items()
        if value is None or isinstance(value, float)
    }
    return found - {"at_unix_seconds"}  # which only says when it was taken


class SeriesThinner:
    """Takes the samples of one node in, its streams by their begin; gives what a plot shows.

    Args:
        window: What it shows.
        longest_step: Between two samples that are no gap, microseconds; infinite: not known.
    """

    def __init__(self, window: PlotWindow, longest_step: float = LONGEST_STEP) -> None:
        self._window = window
        self._longest_step = longest_step
        self._before: tuple[str, int, Integers] = ("", 0, np.zeros(0, dtype=np.int64))
        self._parts: list[PlottedSeries] = []

    def add(self, stream: str, found: NumbersOverTime) -> None:
        """Take samples of a stream in, in its order."""
        if not len(found.times):
            return
        is_after_gap = self._gaps(stream, found)
        window = self._window
        is_shown = (found.times >= window.begin) & (found.times < window.end)
        values = {device: column[is_shown] for device, column in found.values.items()}
        part = PlottedSeries(found.times[is_shown], is_after_gap[is_shown], values)
        self._parts.append(thinned(part, window))

    def _gaps(self, stream: str, found: NumbersOverTime) -> Flags:
        known_stream, last_sequence, earlier = self._before
        times = np.concatenate((earlier, found.times))
        is_after_gap = gaps_in(times, self._longest_step)[len(earlier) :]
        is_after_gap[1:] |= np.diff(found.sequences) != 1  # some were dropped
        if stream == known_stream:
            is_after_gap[0] |= int(found.sequences[0]) != last_sequence + 1
        self._before = (stream, int(found.sequences[-1]), times[-_NUM_BEFORE:])
        return is_after_gap

    def result(self) -> PlottedSeries:
        """What the plot shows of all that was taken in."""
        return thinned(joined(self._parts), self._window)


def gaps_in(times: Integers, longest_step: float) -> Flags:
    """Whether nothing is known of the time before each sample.

    A step is a gap if it is 2.5 times as long as three of the four around it: so a rate that
    changes is no gap, and one sample between two gaps is alone.
    """
    steps = np.diff(times)
    limit = np.full(len(steps), longest_step)
    if len(steps) > 2:  # noqa: PLR2004 - less tells of no rate
        around = np.pad(steps, 2, mode="reflect")
        pairs = (around[:-4], around[1:-3]), (around[3:-1], around[4:])
        smaller, larger = ([take(*pair) for pair in pairs] for take in (np.minimum, np.maximum))
        usual = np.maximum(np.minimum(*larger), np.maximum(*smaller))
        limit = np.minimum(limit, GAP_INTERVALS * usual)
    return np.concatenate((np.zeros(min(1, len(times)), dtype=bool), steps > limit))


def thinned(series: PlottedSeries, window: PlotWindow) -> PlottedSeries:
    """At most two points an interval: its extremes, in their order, at its first and last time.

    One or two samples stay as they are. A gap that is shorter than an interval does not show.
    """
    times, num_samples = series.times, len(series.times)
    if not num_samples:
        return series
    interval = (times - window.begin) // window.width
    firsts = np.flatnonzero(np.diff(interval, prepend=interval[0] - 1))
    lasts = np.append(firsts[1:], num_samples) - 1
    is_point = np.column_stack((np.ones(len(firsts), dtype=bool), lasts > firsts)).ravel()
    is_after_gap = np.column_stack((series.is_after_gap[firsts], np.zeros(len(firsts), dtype=bool)))
    return PlottedSeries(
        np.column_stack((times[firsts], times[lasts])).ravel()[is_point],
        is_after_gap.ravel()[is_point],
        {
            device: _extremes(column, firsts, lasts).ravel()[is_point]
            for device, column in series.values.items()
        },
    )


def _extremes(column: Doubles, firsts: Integers, lasts: Integers) -> Doubles:
    """The smallest and the largest of each interval, in the order in which they were told."""
    low, high = (choose.reduceat(column, firsts) for choose in (np.fmin, np.fmax))
    first_low, first_high = (
        np.minimum.reduceat(
            np.where(
                column == np.repeat(extreme, lasts - firsts + 1),
                np.arange(len(column)),
                len(column),
            ),
            firsts,
        )
        for extreme in (low, high)
    )
    is_low_first = first_low <= first_high
    return np.column_stack((np.where(is_low_first, low, high), np.where(is_low_first, high, low)))


def joined(parts: Sequence[PlottedSeries]) -> PlottedSeries:
    """In the order of time, as the streams of a node may overlap a little."""
    if not parts:
        return PlottedSeries(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool), {})
    times = np.concatenate([part.times for part in parts])
    order = np.argsort(times, kind="stable")
    devices = {device: None for part in parts for device in part.values}
    columns = {
        device: np.concatenate(
            [part.values.get(device, np.full(len(part.times), math.nan)) for part in parts]
        )[order]
        for device in devices
    }
    is_after_gap = np.concatenate([part.is_after_gap for part in parts])
    return PlottedSeries(times[order], is_after_gap[order], columns)


class PlotColumns(NamedTuple):
    """What is drawn: a line for each device, which ends where it is NaN.

    Attributes:
        at_seconds: Since 1970 by the hub's clock, in order, (n,).
        values: Device to its values, (n,).
    """

    at_seconds: Doubles
    values: dict[str, Doubles]


def plot_columns(series: PlottedSeries) -> PlotColumns:
    """The points of a series, with one of no value in each gap."""
    seconds = series.times / MICROSECONDS
    ends = np.flatnonzero(series.is_after_gap[1:]) + 1
    middles = (seconds[ends - 1] + seconds[ends]) / 2
    columns = {device: np.insert(column, ends, np.nan) for device, column in series.values.items()}
    return PlotColumns(np.insert(seconds, ends, middles), columns)
