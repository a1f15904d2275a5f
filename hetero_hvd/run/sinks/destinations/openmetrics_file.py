"""OpenMetrics text for `promtool tsdb create-blocks-from openmetrics`, with the run's times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from hetero_hvd.core.view.metric_names import PREFIX
from hetero_hvd.core.view.sample_metrics import DEVICE, NODE
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample
from hetero_hvd.run.sinks.sink import close_file, text_file

COUNTERS = {entry.family for entry in (*NODE, *DEVICE) if entry.kind == "counter"}
"""Of a recording; what is exported of a run are gauges."""


class OpenMetricsFile:
    """`openmetrics:PATH`, or `openmetrics:-`. Written at the end, as families are not divided."""

    resumes = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._families: dict[str, dict[str, dict[float, float]]] = {}

    def begin(self, run: RunStarted) -> None:
        """Make the file."""
        self._run_id = run.run_id
        self._file = text_file(self._url)

    def write(self, samples: Sequence[Sample]) -> None:
        """Keep them; of two with the same time the later one counts."""
        for one in samples:
            pairs = {"run_id": self._run_id, **one.labels}.items()
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in pairs)
            family = self._families.setdefault(one.family, defaultdict(dict))
            family[labels][round(one.at_unix_seconds, 3)] = one.value

    def end(self, _state: str) -> None:
        """Write all, and close the file."""
        for family, series in self._families.items():
            name, kind = family.removesuffix("_total"), "counter"
            if family not in COUNTERS:
                name, kind = family, "gauge"
            self._file.write(f"# TYPE {PREFIX}{name} {kind}\n")
            for labels, points in series.items():
                for at, value in sorted(points.items()):
                    self._file.write(f"{PREFIX}{family}{{{labels}}} {_number(value)} {at:.3f}\n")
        self._file.write("# EOF\n")
        close_file(self._file)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"


def _escaped(value: str) -> str:
    """A label's value as OpenMetrics writes it: a folder may have any name."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
