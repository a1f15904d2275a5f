"""What a hub is told of the runs of its cluster: their state, and marks on the axis of time."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from hetero_hvd.core.printable import printable
from hetero_hvd.errors import UserError

MAX_MARKS = 500
"""Of a run, the newest; at its driver as at the hub."""

MAX_TEXT = 200
MAX_PATH = 4096
MAX_NODES = 2000

MarkKind = Literal["reset", "plan", "phase"]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
RunId = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT, pattern="^[^/\x00-\x1f]*$")]
PageUrl = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


_PAGE = re.compile(r"https?://([\w.-]+|\[[\w.:%-]+\]):\d{1,5}/?", re.ASCII)


def page_parts(url: str) -> SplitResult:
    """The url of a run's page in parts, which has a host and a port.

    Raises:
        ValueError: It is none.
    """
    parts = urlsplit(url) if _PAGE.fullmatch(url) else None
    if parts is None or not parts.hostname or not parts.port:
        raise ValueError(f"{url!r} is not http[s]://HOST:PORT")
    return parts


class RunMark(msgspec.Struct, frozen=True):
    """Something that happened in a run.

    Attributes:
        at_seconds: When; in a report by the driver's clock since boot, at the hub since 1970.
        kind: A new membership, a plan with other shares, or a phase that is recorded.
        text: In words.
    """

    at_seconds: float
    kind: MarkKind
    text: Text


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands. Times are by its driver's clock since boot.

    Attributes:
        run_id: See `RunStarted`.
        name: What the user calls it; empty if not at all.
        host: Name of the driver's machine.
        folder: Of the run, on that machine.
        url: Of its page, `http[s]://HOST:PORT`; None: it has none any more.
        nodes: Names of those that take part or may.
        now_seconds: When this was said.
        started_at_seconds: When it began.
        ended_at_seconds: When it ended; None: it goes on.
        exit_code: With which it ended.
        reason: Why it ended, in words.
        last_step: Index of the last step heard of; None: there was none.
        first_mark: Number of the first of these marks; those of a run are numbered from 0.
        marks: Those that the hub does not have, in order.
    """

    run_id: RunId
    name: Text
    host: Text
    folder: Annotated[str, msgspec.Meta(max_length=MAX_PATH)]
    url: PageUrl | None
    nodes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_NODES)]
    now_seconds: float
    started_at_seconds: float
    ended_at_seconds: float | None
    exit_code: Annotated[int, msgspec.Meta(ge=-255, le=255)] | None
    reason: Text
    last_step: Step | None
    first_mark: Number
    marks: Annotated[tuple[RunMark, ...], msgspec.Meta(max_length=MAX_MARKS)]

    def seconds_ago(self, at_seconds: float) -> float:
        """How long before the report something was.

        Raises:
            UserError: It was after it, or that is no time.
        """
        found = self.now_seconds - at_seconds
        if not 0.0 <= found < math.inf:
            raise UserError(f"a report of run {self.run_id} with a time that is none")
        return found


class RunReported(msgspec.Struct, frozen=True):
    """What the hub says to a report.

    Attributes:
        next_mark: Number of the first mark that it does not have.
    """

    next_mark: Number


def shortened_text(text: str) -> str:
    """A text that fits, as its beginning, in one line that any link carries."""
    text = printable(text)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
