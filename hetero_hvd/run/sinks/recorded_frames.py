"""The frames of a recording as samples: the names are those that Prometheus has for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hetero_hvd.core.view.metric_names import MetricName
from hetero_hvd.core.view.sample_metrics import DEVICE, NODE, device_values, node_values
from hetero_hvd.messages import ForeignSampled
from hetero_hvd.run.recordings.frames import RecordedFrame
from hetero_hvd.run.sinks.sample import Sample


def samples_of_frames(frames: Iterable[RecordedFrame]) -> Iterator[Sample]:
    """All figures of all frames; a path is `NODE/FIGURE`, of a GPU `NODE/INDEX/FIGURE`."""
    for frame in frames:
        node = frame.node
        sample = frame.sample
        at = frame.at_unix_seconds
        if isinstance(sample, ForeignSampled):
            for name, value in sample.values.items():
                yield Sample(at, 0, name, {"node": node}, f"{node}/{name}", value)
            continue
        for entry in NODE:
            for own, value in node_values(entry, sample).items():
                yield _sample(at, entry, {"node": node}, own, place=node, value=value)
        for gpu in sample.devices:
            labels = {"node": node, "device": str(gpu.index), "uuid": gpu.uuid}
            place = f"{node}/{gpu.index}"
            for entry in DEVICE:
                for own, value in device_values(entry, gpu).items():
                    yield _sample(at, entry, labels, own, place=place, value=value)


def _sample(
    at_unix_seconds: float,
    entry: MetricName,
    labels: dict[str, str],
    own: tuple[str, ...],
    *,
    place: str,
    value: float,
) -> Sample:
    further = dict(zip(entry.labels, own, strict=True))
    path = "/".join([place, entry.name, *own])
    return Sample(at_unix_seconds, 0, entry.family, labels | further, path, value)
