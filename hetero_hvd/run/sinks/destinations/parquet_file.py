"""An Apache Parquet file: the same table as CSV, with types."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import library, place

GROUP_ROWS = 50_000


class ParquetFile:
    """`parquet:PATH`. Can be read once it is closed."""

    resumes = False

    def __init__(self, url: str) -> None:
        self._path = place(url)
        self._pyarrow = library("pyarrow", "parquet")
        self._parquet = library("pyarrow.parquet", "parquet")
        self._rows: list[Sample] = []

    def begin(self, run: RunStarted) -> None:
        """Make the file."""
        pa = self._pyarrow
        columns = [("at_unix_seconds", pa.float64()), ("step", pa.int64())]
        columns += [("name", pa.string()), ("value", pa.float64())]
        self._schema = pa.schema(columns, metadata={"run_id": run.run_id})
        self._writer = self._parquet.ParquetWriter(self._path, self._schema)

    def write(self, samples: Sequence[Sample]) -> None:
        """Append a row for each."""
        self._rows += samples
        if len(self._rows) >= GROUP_ROWS:
            self._flush()

    def end(self, _state: str) -> None:
        """Write the rest and close the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        table = [
            {"at_unix_seconds": s.at_unix_seconds, "step": s.step, "name": s.path, "value": s.value}
            for s in rows
        ]
        self._writer.write_table(self._pyarrow.Table.from_pylist(table, schema=self._schema))
