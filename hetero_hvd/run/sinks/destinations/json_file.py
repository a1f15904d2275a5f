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
        self._frames = _Frames()
        self._separator = "\n"

    def begin(self, run: RunStarted) -> None:
        """Make the file."""
        self._file = text_file(self._url)
        head = msgspec.json.encode({"run_id": run.run_id, "name": run.name}).decode()
        self._file.write(f'{head[:-1]},\n"frames": [')

    def write(self, samples: Sequence[Sample]) -> None:
        """Append the frames that are whole."""
        for one in samples:
            self._append(self._frames.add(one))
            if math.isfinite(one.value):
                self._values.setdefault(one.path, array("d")).append(one.value)

    def end(self, state: str) -> None:
        """Write the summary, and close the file."""
        self._append(self._frames.take())
        summary = {path: _summary(values) for path, values in self._values.items()}
        rest = msgspec.json.encode({"summary": summary, "state": state}).decode()
        self._file.write(f"\n],\n{rest[1:]}\n")
        close_file(self._file)

    def _append(self, frame: str) -> None:
        if frame:
            self._file.write(self._separator + frame)
            self._separator = ",\n"


class _Frames:
    """Puts together what is told of one time."""

    def __init__(self) -> None:
        self._at: tuple[float, int] | None = None
        self._values: dict[str, float | None] = {}

    def add(self, one: Sample) -> str:
        """Take one more; gives the frame before it, if that is whole now."""
        at = one.at_unix_seconds, one.step
        whole = "" if at == self._at else self.take()
        self._at = at
        self._values[one.path] = one.value if math.isfinite(one.value) else None
        return whole

    def take(self) -> str:
        """The frame that has begun; empty: none has."""
        if self._at is None:
            return ""
        at_unix_seconds, step = self._at
        frame = {"at_unix_seconds": at_unix_seconds, "step": step, "values": self._values}
        self._at = None
        self._values = {}
        return msgspec.json.encode(frame).decode()


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
