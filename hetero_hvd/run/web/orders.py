"""What requests to a run's server hold, and what comes back: the schemas of its document."""

from __future__ import annotations

from typing import Annotated

import msgspec

from hetero_hvd.config.job import MAX_TRACE_STEPS
from hetero_hvd.core.view.plots.bounded_series import Axis, PlotRange
from hetero_hvd.errors import UserError


class DrainOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which node or slot is to leave: `NODE` or `NODE:SLOT`."""

    target: str


class StopOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job is to end."""


class TraceOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps are to be recorded.

    Attributes:
        steps: So many, from the next one on.
        workers: Who records with torch's profiler, `node:slot`; None: all.
        timeline: Whether with Horovod's timeline, too, which rank 0 writes.
    """

    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_TRACE_STEPS)] = 5
    workers: tuple[str, ...] | None = None
    timeline: bool = False


class OrderTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What will happen, in words."""

    done: str


class ScrapeTargets(msgspec.Struct, frozen=True, kw_only=True):
    """Some of what Prometheus should scrape, in the form of its http_sd."""

    targets: list[str]
    labels: dict[str, str]


class PlotQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a run is to be drawn; see `PlotRange`.

    Attributes:
        beside: Folders of other runs that are to be in the same plots, with `/` between them.
    """

    axis: Axis = "step"
    begin: float | None = msgspec.field(name="from", default=None)
    end: float | None = msgspec.field(name="to", default=None)
    points: int = 500
    worker: str | None = None
    beside: str = msgspec.field(name="with", default="")

    @property
    def range(self) -> PlotRange:
        """As the plots want it.

        Raises:
            UserError: It ends before it begins, or several runs are to be drawn over the time.
        """
        if self.beside and self.axis == "time":
            raise UserError("`with`: several runs have steps in common, no times; choose steps")
        if self.begin is not None and self.end is not None and self.begin >= self.end:
            raise UserError("`from` must be before `to`")
        return PlotRange(self.axis, self.begin, self.end, self.points)
