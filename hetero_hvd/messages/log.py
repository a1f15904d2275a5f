"""What a worker logs, on its way through its standard error to its log file."""

from __future__ import annotations

import msgspec

MARK = b"\x1e"
"""Begins a line that is a record, among those that the script prints; as in RFC 7464."""


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a log.

    Attributes:
        time: Seconds since 1970.
        level: As in Python's logging, lower case.
        message: What was said.
        logger: Who said it; empty: the script printed it.
        run_id: See `RunStarted`.
        node: Where; None: the driver.
        slot: Process place on that node.
        rendezvous_id: Membership at that time; 0 before the first.
        step: Last step at that time; -1 before the first.
    """

    time: float
    level: str
    message: str
    logger: str = ""
    run_id: str = ""
    node: str | None = None
    slot: int | None = None
    rendezvous_id: int = 0
    step: int = -1
