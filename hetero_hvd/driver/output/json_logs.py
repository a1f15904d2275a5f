"""The run's log files as JSON lines: who, where, at which step; for `log_format: json`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from hetero_hvd.core.printable import printable
from hetero_hvd.core.view.live_words import event_in_words
from hetero_hvd.driver.output.console import MAX_LOG_BYTES
from hetero_hvd.kept_file import KeptFile
from hetero_hvd.messages import LOG_MARK, LogRecord, StepsTimed, WorkerId, WorkersJoined

EVENTS = "hetero_hvd.events"


class LogLines:
    """Knows the run's state, and makes lines of what is logged and printed.

    `observe` is an observer of the bus; what happens there is logged too.

    Args:
        run_id: See `RunStarted`.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._rendezvous_id = 0
        self._step = -1

    def observe(self, _at_unix_seconds: float, event: object) -> None:
        """Follow the run, and log what a person would want to know."""
        match event:
            case WorkersJoined():
                self._rendezvous_id = event.rendezvous_id
                self._step = event.applied_steps - 1
            case StepsTimed():
                self._step = event.step
        if words := event_in_words(event):
            logging.getLogger(EVENTS).info("%s", words)

    def of_record(self, record: logging.LogRecord, message: str) -> bytes:
        """A line about what the driver logged."""
        return self._line(
            LogRecord(
                time=record.created,
                level=record.levelname.lower(),
                logger=record.name,
                message=message,
                rendezvous_id=self._rendezvous_id,
                step=self._step,
            )
        )

    def of_output(self, worker: WorkerId, text: bytes) -> tuple[bytes, str]:
        """A line about what a worker wrote, and the same for people.

        Args:
            worker: Who.
            text: A line without its end; one that claims to be a record and is none counts as text.
        """
        plain = text.decode(errors="replace").rstrip("\r")
        record = LogRecord(
            time=time.time(),
            level="info",
            message=plain,
            rendezvous_id=self._rendezvous_id,
            step=self._step,
        )
        if text.startswith(LOG_MARK):
            try:
                record = msgspec.json.decode(text[len(LOG_MARK) :], type=LogRecord)
            except msgspec.DecodeError:
                pass
            else:
                plain = f"{record.level.upper()} {record.logger}: {record.message}"
        return self._line(record, worker), plain

    def _line(self, record: LogRecord, worker: WorkerId | None = None) -> bytes:
        where = {"node": worker.node, "slot": worker.slot} if worker else {}
        whole = msgspec.structs.replace(record, run_id=self._run_id, **where)
        return msgspec.json.encode(whole) + b"\n"


class LogFormatter(logging.Formatter):
    """Formats the driver's own records.

    Args:
        lines: Makes the lines.
    """

    def __init__(self, lines: LogLines) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end."""
        return self._lines.of_record(record, super().format(record)).decode().rstrip("\n")


class _TextFormatter(logging.Formatter):
    """What a peer has sent may be in a message: it stays one line. Tracebacks keep theirs."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))


class _Handler(logging.Handler):
    """Keeps records in a file as long as the disk takes them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = KeptFile(path, _say, max_bytes=MAX_LOG_BYTES).touch()

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging, for one record at a time."""
        self._file.append(f"{self.format(record)}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        """Called at the end."""
        self._file.close()
        super().close()


def _say(line: str) -> None:
    """To people, without the log."""
    with suppress(OSError, ValueError, AttributeError):  # full, closed, or none at all
        sys.stderr.write(f"{line}\n")


@contextmanager
def log_file(path: Path, log_lines: LogLines | None = None) -> Iterator[None]:
    """Keep what we and Horovod log in a file, off the terminal; as JSON if lines are given."""
    root = logging.getLogger()
    level = root.level
    handler = _Handler(path)
    text = _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(LogFormatter(log_lines) if log_lines else text)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
