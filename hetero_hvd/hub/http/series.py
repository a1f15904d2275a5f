"""Figures over time, as a page plots them: read from what is stored, thinned to its pixels."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec

from hetero_hvd.core.recording.columns import Doubles
from hetero_hvd.core.recording.device_series import THE_NODE
from hetero_hvd.core.recording.segments import (
    NumbersOverTime,
    decode_numbers,
)
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.core.recording.thinned_series import (
    LONGEST_STEP,
    PlotWindow,
    Record,
    SeriesThinner,
    figure_places,
    figures_in,
    plot_columns,
    told_only,
    waiting_numbers,
)
from hetero_hvd.core.recording.timeline import MICROSECONDS
from hetero_hvd.errors import UserError
from hetero_hvd.hub.http.bodies import (
    DEVICE,
    FIGURE,
    MAX_POINTS,
    FigureOverTime,
    PlottedDevice,
    Seconds,
)
from hetero_hvd.hub.storage.index import HEALTHY, UNHEALTHY, FleetMark
from hetero_hvd.hub.storage.store import SampleStore
from hetero_hvd.run.web.operations import Answer, Asked
from hetero_hvd.run.web.problems import RequestProblem

DEFAULT_POINTS = 1000


class _AskedFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the query of a request says; see `FigureOverTime`."""

    figure: Annotated[str, msgspec.Meta(pattern=FIGURE)]
    begin: Seconds = msgspec.field(name="from")
    end: Seconds = msgspec.field(name="to")
    node: Annotated[str, msgspec.Meta(max_length=64)] = ""
    device: Annotated[str, msgspec.Meta(pattern=DEVICE)] | None = None
    points: Annotated[int, msgspec.Meta(ge=1, le=MAX_POINTS)] = DEFAULT_POINTS

    @property
    def window(self) -> PlotWindow:
        """Whose samples are wanted."""
        begin, end = (round(each * MICROSECONDS) for each in (self.begin, self.end))
        return PlotWindow(begin, end, self.points)


class StoredSeries:
    """Answers with figures over time. Used in the loop's thread only.

    Args:
        store: Of the hub.
    """

    def __init__(self, store: SampleStore) -> None:
        self._store = store
        # One at a time: those who only look take a core at most, and no thread of who stores.
        self._turn = asyncio.Semaphore()

    async def act(self, asked: Asked) -> Answer:
        """Read a figure.

        Raises:
            msgspec.ValidationError: A parameter cannot be; says which and why, in one line.
            UserError: The end is not after the begin, or a segment cannot be read now.
        """
        wanted = msgspec.convert(asked.query, _AskedFigure, strict=False)
        if all(state.node != wanted.node for state in self._store.streams().values()):
            words = f"node {wanted.node!r}: nothing of it is stored; GET /v1/clients lists all"
            return Answer(RequestProblem(error=words), 404)
        if wanted.window.begin >= wanted.window.end:
            raise UserError("`from` must be before `to`")
        async with self._turn:
            return Answer(await asyncio.to_thread(self._read, wanted))

    def _read(self, wanted: _AskedFigure) -> FigureOverTime:
        session = RecordingSession(
            name="plot",
            from_microseconds=wanted.window.begin,
            until_microseconds=wanted.window.end,
            nodes=(wanted.node,),
        )
        is_node = self._store.is_of_an_agent(wanted.node)
        thinner = SeriesThinner(wanted.window, LONGEST_STEP if is_node else math.inf)
        figures: set[str] = set()
        num_left_out = 0  # a program has one stream
        for stream, numbers in self._numbers(session, wanted.figure, figures):
            found = numbers
            if not is_node:
                found, num_left_out = told_only(numbers, num_left_out)
            thinner.add(stream, found)
        columns = plot_columns(thinner.result())
        return FigureOverTime(
            node=wanted.node,
            figure=wanted.figure,
            from_unix_seconds=wanted.begin,
            to_unix_seconds=wanted.end,
            figures=sorted(figures),
            at_unix_seconds=columns.at_seconds.tolist(),
            series=[
                PlottedDevice(device=device, values=_or_none(columns.values[device]))
                for device in sorted(columns.values, key=_device_order)
                if wanted.device in (None, device)
            ],
            unhealthy=list(self._unhealthy(session)),
        )

    def _numbers(
        self, session: RecordingSession, figure: str, figures: set[str]
    ) -> Iterator[tuple[str, NumbersOverTime]]:
        """The samples of each stream, piece by piece; notes which figures there are."""

        def places(sample: Record) -> dict[str, str]:
            figures.update(figures_in(sample))
            return figure_places(sample, figure)

        for each in self._store.stored(session):
            for piece in each.pieces:
                found = self._store.read_piece(piece, partial(decode_numbers, places=places))
                if found is not None:
                    yield each.stream, found
            if each.waiting:
                yield each.stream, waiting_numbers(each.waiting, figure, figures)

    def _unhealthy(self, session: RecordingSession) -> Iterator[tuple[float, float]]:
        """From when to when the node was not heard, seconds since 1970."""
        end = min(session.until_microseconds or 0, self._store.now_microseconds())
        began: int | None = None
        for mark in [*self._store.index.marks(session), FleetMark(end, "", HEALTHY, "")]:
            if mark.kind == UNHEALTHY and began is None:
                began = mark.at
            elif mark.kind == HEALTHY and began is not None:
                if mark.at > session.from_microseconds:
                    begin = max(began, session.from_microseconds)
                    yield begin / MICROSECONDS, mark.at / MICROSECONDS
                began = None


def _or_none(values: Doubles) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _device_order(device: str) -> tuple[bool, int]:
    """The node first, then its GPUs by index."""
    return device != THE_NODE, 0 if device == THE_NODE else int(device)
