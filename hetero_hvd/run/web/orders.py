"""What requests to a run's server hold, and what comes back: the schemas of its document."""

from __future__ import annotations

from typing import Annotated

import msgspec

from hetero_hvd.config.job import MAX_TRACE_STEPS


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
