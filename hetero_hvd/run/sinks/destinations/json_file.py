"""JSON: what was told at each time as a frame, and a summary of each name."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import msgspec
import numpy as np

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import close_file, text_file


class JsonFile:
    """`json:PATH`, or `json:-`. What is no number is null, as JSON has none.

    One object: `run_id`, `name`, `frames` (`at_unix_seconds`, `step`, `values` by name), `summary`
    (by name: `count`, `mean`, `median`, `p95`, `max`) and `state`.
    """

    resumes = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._values: dict[str, array[float]] = {}
        self._frame: tuple[float, int] | None = None
        self._in_frame: dict[str, float | None] = {}
        self._is_first = True

    def begin(self, run: RunStarted) -> None:
        """Make the file."""
        self._file = text_file(self._url)
        head = msgspec.json.encode({"run_id": run.run_id, "name": run.name}).decode()
        self._file.write(f'{head[:-1]},\n"frames": [')

    def write(self, samples: Sequence[Sample]) -> None:
        """Append the frames that are whole."""
        for one in samples:
            frame = one.at_unix_seconds, one.step
            if frame != self._frame:
                self._end_frame()
                self._frame = frame
            is_told = math.isfinite(one.value)
            self._in_frame[one.path] = one.value if is_told else None
            if is_told:
                self._values.setdefault(one.path, array("d")).append(one.value)

    def end(self, state: str) -> None:
        """Write the summary, and close the file."""
        self._end_frame()
        summary = {path: _summary(values) for path, values in self._values.items()}
        rest = msgspec.json.encode({"summary": summary, "state": state}).decode()
        self._file.write(f"\n],\n{rest[1:]}\n")
        close_file(self._file)

    def _end_frame(self) -> None:
        if self._frame is None:
            return
        at_unix_seconds, step = self._frame
        frame = {"at_unix_seconds": at_unix_seconds, "step": step, "values": self._in_frame}
        self._file.write("\n" if self._is_first else ",\n")
        self._file.write(msgspec.json.encode(frame).decode())
        self._is_first = False
        self._in_frame = {}
        self._frame = None


def _summary(values: array[float]) -> dict[str, float]:
    found = np.array(values)
    median, p95 = np.percentile(found, [50, 95])
    return {
        "count": len(values),
        "mean": float(found.mean()),
        "median": float(median),
        "p95": float(p95),
        "max": float(found.max()),
    }
