"""What the devices of a recording did, in words and as figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from hetero_hvd.core.recording.device_figures import (
    DeviceFigures,
    DeviceSummary,
    Interval,
    Spread,
)
from hetero_hvd.messages import NodeSampled
from hetero_hvd.run.recordings.folder import RecordingFacts, read_facts
from hetero_hvd.run.recordings.frames import read_frames

BYTES_SHOWN = 2**30


def summaries_of(folder: Path) -> list[DeviceSummary]:
    """Of each device of a recording, by node.

    Raises:
        JobError: It is none, or damaged.
    """
    facts = read_facts(folder)
    interval = Interval(facts.from_unix_seconds, facts.until_unix_seconds, facts.every_seconds)
    figures = DeviceFigures(interval)
    for frame in read_frames(folder):
        if isinstance(sample := frame.sample, NodeSampled):
            figures.add(frame.node, frame.at_unix_seconds, sample)
    return sorted(figures.summaries(), key=lambda found: (found.node, found.device != "node"))


def in_words(facts: RecordingFacts, summaries: Sequence[DeviceSummary]) -> Iterator[str]:
    """Some lines for each device, and what happened."""
    for found in summaries:
        device = found.node if found.device == "node" else f"{found.node} GPU {found.device}"
        yield "  ".join(filter(None, [device, found.name, *_times(found)]))
        for name, spread in found.figures.items():
            yield f"  {name}  {_in_words(name, spread)}"
        if found.cycle is not None:
            part = f"in {found.cycle.window_ratio:.0%} of {found.cycle.num_windows} windows"
            yield f"  works in cycles of {found.cycle.seconds:.3g} s, {part}"
    for mark in facts.marks:
        at = datetime.fromtimestamp(mark.at_unix_seconds)  # noqa: DTZ006 - for people here
        yield f"{at:%Y-%m-%d %H:%M:%S}  {mark.node}: {mark.words}"


def _times(found: DeviceSummary) -> Iterator[str]:
    reached = found.every_seconds
    rate = "" if reached is None else f", one every {reached:.2g} s"
    yield f"{found.num_samples} samples{rate}"
    if found.idle_seconds is not None and found.saturated_seconds is not None:
        yield f"idle {found.idle_seconds:.0f} s, saturated {found.saturated_seconds:.0f} s"
    if found.joules is not None:
        yield f"{found.joules:.0f} J"
    yield f"{found.missing_seconds:.0f} s missing"


def _in_words(name: str, spread: Spread) -> str:
    is_bytes = name.endswith("_bytes")
    divisor, unit = (BYTES_SHOWN, " GiB") if is_bytes else (1, "")
    values = (spread.mean, spread.median, spread.p95, spread.max)
    words = zip(("mean", "median", "p95", "max"), values, strict=True)
    return ", ".join(f"{word} {value / divisor:.3g}{unit}" for word, value in words)
