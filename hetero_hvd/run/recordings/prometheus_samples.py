"""Samples of machines from a Prometheus, as a recording would have them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.view.exporters import (
    FIGURES,
    FREE,
    INSTANCE_LABEL,
    NODE_NAMES,
    PROBES,
    QUEUE_WAITS,
    ExportedFigure,
    gpu_of,
    in_field,
    node_of,
    query_of,
)
from hetero_hvd.errors import JobError
from hetero_hvd.messages import DeviceSample, NodeSampled
from hetero_hvd.run.recordings.prometheus_api import PrometheusApi, PrometheusSeries

MAX_SERIES = 2000
"""Of one metric: a few hundred machines of 8 GPUs. Of more a part must be named."""

MAX_VALUES = 250_000
"""Of one metric: of more series and time not each scrape is asked for."""

RAW_SECONDS = 3600.0
"""Of one series all values of so long are asked for, to see how often it is scraped."""

LATE_RATIO = 0.1
"""Of the time between two scrapes, after which their values are asked for: one that is a little
late is not missed, and none is on the edge of two windows, which versions see differently."""

MAX_NOT_TOLD = 20
"""Lines about series that could not be used; more are counted."""

MAX_WAITS = 1000
"""Points of the wait in a queue."""

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PrometheusSamples:
    """What was found.

    Attributes:
        every_seconds: Between two of them.
        samples: Node, seconds since 1970 and sample, node by node in the order of time.
        waits: Pool of a queue to times, and how long the job that waits longest has waited.
        not_told: What could not be used, a line each.
    """

    every_seconds: float
    samples: tuple[tuple[str, float, NodeSampled], ...]
    waits: Mapping[str, tuple[Values, Values]]
    not_told: tuple[str, ...]


@dataclass
class _FiguresByTime:
    """Field to value, for each time of a node and of its GPUs."""

    of_node: dict[tuple[str, int], dict[str, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    of_gpus: dict[tuple[str, int], dict[int, dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    not_told: dict[str, None] = field(default_factory=dict)
    owners: dict[tuple[str, str, int | None], str] = field(default_factory=dict)


def read_prometheus(
    api: PrometheusApi, until: float, seconds: float, select: str = ""
) -> PrometheusSamples:
    """The samples of the newest time.

    Args:
        api: Of the server.
        until: The end, seconds since 1970.
        seconds: How much before it, > 0.
        select: Label matchers that all series must fulfil, such as `cluster="a"`; empty: all.

    Raises:
        JobError: It has none of the series that are known here, too many, or refuses.
        TryAgainError: It does not answer.
    """
    scraped = {
        family: told
        for family, metrics in PROBES.items()
        if (told := _scraped(api, metrics, select, until, seconds)) is not None
    }
    if not scraped:
        probes = ", ".join(metrics[0] for metrics in PROBES.values())
        raise JobError(
            f"--prometheus: of the last {seconds / 3600:g} hours it has no series of dcgm-exporter,"
            f" the node exporter or hetero_hvd ({probes})" + (f" with {select}" if select else "")
        )
    fastest = min(scraped.values())
    most = max(told.num_series for told in scraped.values())
    step = fastest.every * max(1, math.ceil(most * seconds / fastest.every / MAX_VALUES))
    end = until - (until - fastest.newest) % fastest.every  # times are those of scrapes
    begin = end - math.floor(seconds / step) * step
    late = LATE_RATIO * fastest.every
    names = _node_names(api, select, until) if "node" in scraped else {}
    found = _FiguresByTime()
    for figure in FIGURES:
        if figure.family in scraped:
            query = query_of(figure.query, select, scraped[figure.family].every)
            for series in api.over(query, begin + late, end + late, step):
                _take(found, figure, series, names, (begin + late, step))
    query = query_of(f"{QUEUE_WAITS}{{$select}}", select, fastest.every)
    waited = api.over(query, begin, end, max(step, seconds / MAX_WAITS))
    waits = {series.metric.get("pool", ""): _arrays(series) for series in waited}
    return PrometheusSamples(
        every_seconds=step,
        samples=tuple(_samples(found, begin, step)),
        waits=waits,
        not_told=(*_few(list(found.not_told)), *api.warnings),
    )


def _few(lines: Sequence[str]) -> Iterator[str]:
    """The first ones, and how many there are beyond."""
    yield from lines[:MAX_NOT_TOLD]
    if len(lines) > MAX_NOT_TOLD:
        yield f"and {len(lines) - MAX_NOT_TOLD} others of that kind"


class _Scraped(NamedTuple):
    """Of the exporters of a family: seconds between two scrapes, their newest, how many series."""

    every: float
    newest: float
    num_series: int


def _scraped(
    api: PrometheusApi, metrics: tuple[str, ...], select: str, until: float, seconds: float
) -> _Scraped | None:
    """By the first metric that there is, of that series which has most values."""
    window = f"{max(1.0, seconds):.0f}s"
    for metric in metrics:
        named = f"{metric}{{{select}}}"
        counted = api.instant(f"count(count_over_time({named}[{window}]))", until)
        most = api.instant(f"topk(1, count_over_time({named}[{window}]))", until)
        if not (most and counted and counted[0].values and math.isfinite(counted[0].values[0][1])):
            continue
        number = int(counted[0].values[0][1])
        if number > MAX_SERIES:
            raise JobError(
                f"--prometheus: {metric} has {number} series, more than {MAX_SERIES}: name a part "
                "of them with --match, such as --match 'cluster=\"a\"'"
            )
        own = ",".join(
            f'{name}="{_escaped(value)}"'
            for name, value in most[0].metric.items()
            if name != "__name__"
        )
        for length in sorted({min(RAW_SECONDS, seconds), seconds}):  # it may have ended long ago
            raw = api.instant(f"{metric}{{{own}}}[{max(1.0, length):.0f}s]", until)
            times = sorted({at for series in raw for at, _ in series.values})
            steps = [after - before for before, after in pairwise(times)]
            if steps:
                return _Scraped(max(0.001, round(median(steps), 3)), times[-1], number)
    return None


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _node_names(api: PrometheusApi, select: str, until: float) -> dict[str, str]:
    found = api.instant(f"last_over_time({NODE_NAMES}{{{select}}}[1d])", until)
    return {each.metric.get("instance", ""): each.metric.get("nodename", "") for each in found}


def _take(
    found: _FiguresByTime,
    figure: ExportedFigure,
    series: PrometheusSeries,
    names: Mapping[str, str],
    grid: tuple[float, float],
) -> None:
    """Take a series in; what of it is no figure, or is told twice, is left out."""
    labels = series.metric
    node = node_of(labels, names)
    is_gpu = figure.family in {"dcgm", "own-gpu"}
    gpu = gpu_of(labels) if is_gpu else None
    if labels.get(INSTANCE_LABEL):
        found.not_told[f"{node or '?'}: parts of its GPUs (MIG) are left out"] = None
        return
    if not node or (is_gpu and gpu is None):
        found.not_told[f"{figure.field}: a series does not tell its node or GPU: {labels}"] = None
        return
    # One exporter of a family tells a figure; the same figure may come from two.
    owner = figure.query + repr(sorted(labels.items()))
    if found.owners.setdefault((figure.field, node, gpu), owner) != owner:
        return
    begin, step = grid
    num_wrong = 0
    for at, told in series.values:
        place = round((at - begin) / step)
        value = in_field(figure, told)
        num_wrong += math.isnan(value) and not math.isnan(told)
        if math.isnan(value):
            continue
        if gpu is None:
            found.of_node[node, place][figure.field] = value
        else:
            own = found.of_gpus[node, place][gpu]
            own[figure.field] = value
            own["uuid"] = labels.get("UUID", labels.get("uuid", ""))
            own["name"] = labels.get("modelName", "")
    if num_wrong:
        words = f"{figure.field} of {node}" + ("" if gpu is None else f" GPU {gpu}")
        found.not_told[f"{words}: {num_wrong} values are out of its range, and left out"] = None


def _samples(
    found: _FiguresByTime, begin: float, step: float
) -> Iterator[tuple[str, float, NodeSampled]]:
    for node, place in sorted(found.of_node.keys() | found.of_gpus.keys()):
        own = _with_memory(found.of_node.get((node, place), {}))
        devices = tuple(
            DeviceSample(index=index, **_with_memory(gpu))
            for index, gpu in sorted(found.of_gpus.get((node, place), {}).items())
        )
        yield node, begin + place * step, NodeSampled(node=node, devices=devices, **own)


def _with_memory(told: Mapping[str, Any]) -> dict[str, Any]:
    """Used and total memory, of which exporters tell two of three."""
    own = dict(told)
    free = own.pop(FREE, None)
    if free is not None and "memory_total_bytes" in own:
        own.setdefault("memory_used_bytes", max(0.0, own["memory_total_bytes"] - free))
    elif free is not None and "memory_used_bytes" in own:
        own["memory_total_bytes"] = own["memory_used_bytes"] + free
    return own


def _arrays(series: PrometheusSeries) -> tuple[Values, Values]:
    pairs = np.array(series.values, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
