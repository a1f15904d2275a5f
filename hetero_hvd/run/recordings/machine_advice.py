"""What is advised of machines by their samples: of a recording, a Prometheus, or a run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetero_hvd.core.advice.advice import Advised, Worth, ranked
from hetero_hvd.core.advice.machines import (
    FIGURES_OF_GPU,
    FIGURES_OF_NODE,
    advice_of,
    forecast_words,
    in_words,
    see,
)
from hetero_hvd.core.patterns.forecast import find_forecast
from hetero_hvd.core.recording.device_series import THE_NODE, DeviceSeries, SeriesCollector
from hetero_hvd.messages import NodeEquipped, NodeSampled
from hetero_hvd.run.recordings.folder import read_facts
from hetero_hvd.run.recordings.frames import read_frames
from hetero_hvd.run.recordings.prometheus_samples import PrometheusSamples
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.records.samples import INTERVAL_SECONDS
from hetero_hvd.run.records.samples import THE_NODE as NODE_ROW

Samples = Iterable[tuple[str, float, NodeSampled]]


def of_recording(folder: Path, worth: Worth, *, seconds: float | None = None) -> Advised:
    """What is advised of the machines of a recording.

    Args:
        folder: Of it.
        worth: What is told.
        seconds: The newest time that counts; None: all.

    Raises:
        JobError: It is none, or damaged.
    """
    facts = read_facts(folder)
    begin = -math.inf if seconds is None else facts.until_unix_seconds - seconds
    samples = (
        (frame.node, frame.at_unix_seconds, sample)
        for frame in read_frames(folder)
        if isinstance(sample := frame.sample, NodeSampled) and frame.at_unix_seconds >= begin
    )
    command = f"hetero-hvd report {shlex.quote(str(folder))}"
    return of_samples(samples, facts.every_seconds, worth, command=command)


def of_prometheus(told: PrometheusSamples, worth: Worth, command: str) -> Advised:
    """What is advised of the machines of a Prometheus, and how its queues' waits go on.

    Args:
        told: What it has.
        worth: What is told.
        command: That shows more.
    """
    said = of_samples(
        told.samples, told.every_seconds, worth, command=command, not_judged=told.not_told
    )
    return Advised(
        advice=said.advice,
        not_judged=said.not_judged,
        seen=(*said.seen, *_waits(told)),
    )


def of_samples(
    samples: Samples,
    every_seconds: float,
    worth: Worth,
    *,
    command: str = "",
    not_judged: Sequence[str] = (),
) -> Advised:
    """What is advised of machines.

    Args:
        samples: Node, seconds since 1970 and what was sampled, in any order.
        every_seconds: Between two samples, as it was wanted.
        worth: What is told.
        command: That shows more; empty: none.
        not_judged: What could not be used.
    """
    collector = SeriesCollector(FIGURES_OF_NODE, FIGURES_OF_GPU)
    for node, at, sample in samples:
        collector.add(node, at, sample)
    all_series = list(collector.series())
    seen = see(all_series, every_seconds)
    known = {str(each.series) for each in seen}
    few = [f"{series}: fewer than two samples" for series in all_series if str(series) not in known]
    return Advised(
        advice=ranked(advice_of(seen, command=command), worth),
        not_judged=(*few, *not_judged, *(() if all_series else ("nothing was sampled",))),
        seen=tuple(in_words(seen)),
    )


def of_run(record: Record, worth: Worth, command: str) -> Advised:
    """What is advised of the machines of a run: what is idle, and memory that fills up.

    What binds it is judged by its own measurements.

    Args:
        record: With all columns of its samples.
        worth: What is told.
        command: That shows more.
    """
    all_series = list(_series_of(record))
    if not all_series:
        return Advised(advice=())
    seen = see(all_series, INTERVAL_SECONDS)
    found = (each for each in advice_of(seen, command=command) if each.kind in {"idle", "memory"})
    return Advised(advice=ranked(found, worth))


def _series_of(record: Record) -> Iterator[DeviceSeries]:
    """The rows of a run's samples, device by device."""
    equipped = {told.node: told for _, told in record.events if isinstance(told, NodeEquipped)}
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in record.samples:
        rows.setdefault((row["node"], row["device"]), []).append(row)
    for (node, device), own in rows.items():
        own.sort(key=lambda row: row["at_unix_seconds"])
        is_node = device == NODE_ROW
        known = equipped.get(node)
        gpus = {} if known is None else {gpu.index: gpu for gpu in known.devices}
        size = math.nan
        if is_node and known is not None:
            size = known.memory_bytes
        elif device in gpus:
            size = gpus[device].memory_bytes
        users = own[-1].get("used_by") or ""
        yield DeviceSeries(
            node=node,
            device=THE_NODE if is_node else str(device),
            name=gpus[device].name if device in gpus else "",
            times=np.array([row["at_unix_seconds"] for row in own], dtype=np.float64),
            columns=_columns(own, FIGURES_OF_NODE if is_node else FIGURES_OF_GPU)
            | {"memory_total_bytes": np.full(len(own), size)},
            users=(users,) if users else (),
        )


def _columns(
    rows: Sequence[Mapping[str, Any]], figures: Iterable[str]
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """The means of the rows; NaN where one was not told."""
    return {
        name: np.array([row.get(f"{name}_mean") for row in rows], dtype=np.float64)
        for name in figures
    }


def _waits(told: PrometheusSamples) -> Iterator[str]:
    """How the waits of a queue's pools go on."""
    for pool, (times, values) in sorted(told.waits.items()):
        if len(times) < 2:  # noqa: PLR2004 - a series
            continue
        found = find_forecast(times, values, float(times[-1] - times[0]) / 8)
        now = f"the job that waits longest has waited for {values[-1] / 60:.0f} min"
        yield f"queue pool {pool}: {now}; {forecast_words(found, 1 / 60, ' min')}"
