"""A file of comma-separated values, or standard output: a line for each sample."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import close_file, text_file

COLUMNS = ("at_unix_seconds", "step", "name", "value")


class CsvFile:
    """`csv:PATH`, or `csv:-`. Numbers are written with all their digits."""

    resumes = False

    def __init__(self, url: str) -> None:
        self._url = url

    def begin(self, _run: RunStarted) -> None:
        """Make the file, with the names of the columns."""
        self._file = text_file(self._url)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLUMNS)

    def write(self, samples: Sequence[Sample]) -> None:
        """Append a line for each."""
        for one in samples:
            self._writer.writerow((one.at_unix_seconds, one.step, one.path, one.value))
        self._file.flush()

    def end(self, _state: str) -> None:
        """Close the file."""
        close_file(self._file)
