"""What the package logs in a worker, as records that the driver tells from what the script prints.

Only where the job's `log_format` asks for it; the script's own logging is never touched.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import msgspec

from hetero_hvd.messages import LOG_MARK, LogRecord

PACKAGE = "hetero_hvd"


class _Formatter(logging.Formatter):
    def __init__(self, step: Callable[[], int], rendezvous_id: Callable[[], int]) -> None:
        super().__init__()
        self._step = step
        self._rendezvous_id = rendezvous_id

    def format(self, record: logging.LogRecord) -> str:
        line = LogRecord(
            time=record.created,
            level=record.levelname.lower(),
            logger=record.name,
            message=super().format(record),  # with a traceback, if there is one
            step=self._step(),
            rendezvous_id=self._rendezvous_id(),
        )
        return (LOG_MARK + msgspec.json.encode(line)).decode()


def log_records(*, step: Callable[[], int], rendezvous_id: Callable[[], int]) -> None:
    """From now on the package's loggers write records to standard error.

    Args:
        step: Gives the last applied step.
        rendezvous_id: Gives the membership.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(step, rendezvous_id))
    logger = logging.getLogger(PACKAGE)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
