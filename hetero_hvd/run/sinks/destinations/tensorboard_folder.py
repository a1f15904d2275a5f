"""An event file of TensorBoard, with scalars in double precision."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_hvd.errors import UserError
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import library, place

PROTO = "tensorboard.compat.proto"


class TensorBoardFolder:
    """`tensorboard:FOLDER`, for `tensorboard --logdir`.

    A scalar is a tensor of one double: the older form has 32 bits, which round.
    """

    resumes = True

    def __init__(self, url: str) -> None:
        self._folder = place(url)
        if not self._folder:
            raise UserError(f"{url}: must name a folder, as in {url}logs")
        self._event = library(f"{PROTO}.event_pb2", "tensorboard").Event
        self._summary = library(f"{PROTO}.summary_pb2", "tensorboard")
        self._tensor = library(f"{PROTO}.tensor_pb2", "tensorboard").TensorProto
        self._double = library(f"{PROTO}.types_pb2", "tensorboard").DT_DOUBLE
        self._writers = library("tensorboard.summary.writer.event_file_writer", "tensorboard")

    def begin(self, run: RunStarted) -> None:
        """Make the folder and the file."""
        self._writer = self._writers.EventFileWriter(self._folder, filename_suffix=f".{run.run_id}")

    def write(self, samples: Sequence[Sample]) -> None:
        """An event for each."""
        data = self._summary.SummaryMetadata.PluginData(plugin_name="scalars")
        kind = self._summary.SummaryMetadata(plugin_data=data, data_class=1)
        for one in samples:
            tensor = self._tensor(dtype=self._double, double_val=[one.value])
            value = self._summary.Summary.Value(tag=one.path, tensor=tensor, metadata=kind)
            summary = self._summary.Summary(value=[value])
            event = self._event(wall_time=one.at_unix_seconds, step=one.step, summary=summary)
            self._writer.add_event(event)
        self._writer.flush()

    def end(self, _state: str) -> None:
        """Close the file."""
        self._writer.close()
