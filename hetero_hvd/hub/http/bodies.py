"""What requests to the hub hold, and what comes back: the schemas of its OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from hetero_hvd.core.names import MAX_NAME_CHARACTERS, NODE, RECORDED_NAME, NameRule
from hetero_hvd.core.recording.runs import MarkKind
from hetero_hvd.core.recording.sequences import FIRST, MAX_NUMBER
from hetero_hvd.core.recording.sessions import (
    DEFAULT_EVERY_SECONDS,
    MAX_EVERY_SECONDS,
    MIN_EVERY_SECONDS,
)
from hetero_hvd.core.recording.timeline import MAX_TIME_SECONDS
from hetero_hvd.errors import UserError

MAX_SAMPLES = 1000
MAX_NODES = 10_000
MAX_POINTS = 4000
END = r"$(?!\n)"
"""In Python `$` alone is also before a line break at the end."""

FIGURE, DEVICE = f"^[A-Za-z][A-Za-z0-9_]{{0,99}}{END}", f"^(node|[0-9]{{1,9}}){END}"


def _described(rule: NameRule) -> msgspec.Meta:
    """A name in the document; who checks it has better words than a pattern."""
    pattern = f"^{rule.pattern.pattern}{END}"
    return msgspec.Meta(
        extra_json_schema={"pattern": pattern, "maxLength": MAX_NAME_CHARACTERS, "minLength": 1}
    )


SessionName = Annotated[str, _described(RECORDED_NAME)]
NodeName = Annotated[str, _described(NODE)]
Nodes = Annotated[list[NodeName], msgspec.Meta(max_length=MAX_NODES)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_SECONDS)]


class _NamedSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is about a session and nodes."""

    name: SessionName
    nodes: Nodes = []

    def __post_init__(self) -> None:
        _check("session", self.name, RECORDED_NAME)
        for node in self.nodes:
            _check("node", node, NODE)


class StartSession(_NamedSession, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session that begins now."""

    every_seconds: Annotated[float, msgspec.Meta(ge=MIN_EVERY_SECONDS, le=MAX_EVERY_SECONDS)] = (
        DEFAULT_EVERY_SECONDS
    )
    keep_seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIME_SECONDS)] | None = None
    keep_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None


class CutSession(_NamedSession, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of what is stored; without times that of the session of this name."""

    from_unix_seconds: Seconds | None = None
    to_unix_seconds: Seconds | None = None


def _check(what: str, name: str, rule: NameRule) -> None:
    try:
        rule.check(what, name)
    except UserError as error:
        raise ValueError(str(error)) from error  # of which msgspec makes its own


class ForeignSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values at one time, by the clock of who sends them."""

    at_unix_seconds: Seconds
    values: dict[str, float]


class IngestBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samples of another program. The same batch may be sent again: it is stored once.

    `first` is the number of the first sample; the others follow, and none is above 2**53 - 1.
    """

    source: NodeName
    first: Annotated[int, msgspec.Meta(ge=FIRST, le=MAX_NUMBER)]
    sent_at_unix_seconds: Seconds
    units: dict[str, str]
    samples: Annotated[list[ForeignSample], msgspec.Meta(min_length=1, max_length=MAX_SAMPLES)]

    def __post_init__(self) -> None:
        _check("source", self.source, NODE)


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch."""

    next_sequence: int
    duplicates: int


class PlottedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a plot: `device` is `node`, or the index of a GPU; null where it is not told."""

    device: str
    values: list[float | None]


class FigureOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of all devices of a node, at common times, with a null in each gap.

    Each of the intervals that were asked for has its smallest and largest value. `figures` are all
    that are told in this time; while the node was `unhealthy`, nothing was heard of it.
    """

    node: str
    figure: str
    from_unix_seconds: float
    to_unix_seconds: float
    figures: list[str]
    at_unix_seconds: list[float]
    series: list[PlottedDevice]
    unhealthy: list[tuple[float, float]]


class PartOfList(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list; `next` is what to give as `after` for the next part, null at the end."""

    items: list[dict[str, Any]]
    next: str | None


class RunItem(msgspec.Struct, kw_only=True):
    """A run, or a recording that is written.

    `nodes` is empty for a recording of all. Of a run that has vanished the end is not known: its
    driver was heard at `heard_at_unix_seconds` last.
    """

    id: str
    name: str
    kind: Literal["run", "recording"]
    state: Literal["running", "ended", "vanished", "recorded"]
    started_at_unix_seconds: float
    ended_at_unix_seconds: float | None
    url: str | None
    folder: str
    nodes: list[str]
    last_step: int | None
    host: str | None = None
    exit_code: int | None = None
    reason: str = ""
    heard_at_unix_seconds: float | None = None


class ShownMark(msgspec.Struct, kw_only=True):
    """Something that happened in a run."""

    at_unix_seconds: float
    kind: MarkKind
    text: str


class RunWithMarks(RunItem, kw_only=True):
    """A run with its newest marks; `num_earlier_marks` are not kept."""

    marks: list[ShownMark]
    num_earlier_marks: int = 0


class PartOfRuns(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list; see `PartOfList`."""

    items: list[RunItem]
    next: str | None
