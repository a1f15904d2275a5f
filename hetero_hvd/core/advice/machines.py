"""Advice about machines by what they do, whatever runs on them: from series alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_hvd.core.advice.advice import Advice, Gain
from hetero_hvd.core.patterns.changes import Phase, find_changes, idle_phases
from hetero_hvd.core.patterns.cycle import Cycle, find_cycle
from hetero_hvd.core.patterns.forecast import Forecast, find_forecast
from hetero_hvd.core.patterns.job_type import IDLE_RATIO, JobType, job_type
from hetero_hvd.core.recording.device_figures import GAP_INTERVALS
from hetero_hvd.core.recording.device_series import THE_NODE, DeviceSeries

MIN_IDLE_SECONDS = 60.0
"""A shorter time without use is a part of the work, such as the start of a job or an evaluation."""

STANDS_STILL_RATIO = 0.5
"""A device that is idle for so much of the time, and now, is told."""

BETWEEN_RATIO, BETWEEN_PHASES = 0.3, 3
"""One that works now is told if it was idle for so much of the time, in so many phases."""

HELD_RATIO = 0.1
"""Part of an idle GPU's memory that is held by somebody."""

FULL_RATIO = 0.95
"""A machine's memory that is used so much is nearly used up."""

MAX_AHEAD_RATIO = 10.0
"""What would happen after so many times the time that is known is not told."""

MAX_AHEAD_SECONDS = 7 * 86400.0
"""Nor what is further away."""

MIN_CHANGE_RATIO = 0.1
"""Of a device's use: a change of less is not told."""

MAX_NAMED = 5
"""Devices; more are told by their number."""

MAX_CHANGES = 3
"""More are told by their number."""

GIB = 2.0**30
HOUR = 3600.0

FIGURES_OF_NODE = {
    "use_ratio": "cpu_use_ratio",
    "memory_used_bytes": "memory_used_bytes",
    "memory_total_bytes": "memory_total_bytes",
    "power_watts": "package_power_watts",
    **{name: name for name in (
        "disk_read_bytes_per_second",
        "network_received_bytes_per_second",
        "network_sent_bytes_per_second",
    )},
}  # fmt: skip
FIGURES_OF_GPU = {name: name for name in (
    "use_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_watts",
    "dram_active_ratio",
    "nvlink_received_bytes_per_second",
    "nvlink_sent_bytes_per_second",
)}  # fmt: skip
"""What series have to tell: name to the field of a sample."""

OPTIONS = {
    "input": "more loader workers (num_workers), data that are decoded once and kept on the node "
    "(hetero_hvd.data with a cache), or fewer transformations",
    "communication": "accumulation over several batches, compression (fp16), or a staleness bound",
}
"""What helps against waiting."""

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SeenDevice:
    """What the series of one device tell.

    Attributes:
        series: Of the device.
        phases: In which it was idle.
        known_seconds: For how long something is known of it.
        job: What kind of job it does while it is not idle.
        cycle: Of that; None: none is found.
        memory: How its memory goes on; None: as it is, as far as is known.
        use: The same of its use.
    """

    series: DeviceSeries
    phases: Sequence[Phase]
    known_seconds: float
    job: JobType
    cycle: Cycle | None
    memory: Forecast | None
    use: Forecast | None

    @property
    def idle_seconds(self) -> float:
        """In all phases."""
        return math.fsum(phase.seconds for phase in self.phases)

    @property
    def is_idle_now(self) -> bool:
        """Whether its last sample is in such a phase."""
        return bool(self.phases) and self.phases[-1].end >= float(self.series.times[-1])


def see(all_series: Sequence[DeviceSeries], every_seconds: float) -> list[SeenDevice]:
    """What all devices do; those of which too little is known are left out.

    Args:
        all_series: Of devices and their nodes; see `FIGURES_OF_NODE` and `FIGURES_OF_GPU`.
        every_seconds: Between two samples, as it was wanted.
    """
    nodes = {each.node: each for each in all_series if each.device == THE_NODE}
    return [
        _see(each, nodes.get(each.node), every_seconds)
        for each in sorted(
            all_series,
            key=lambda one: (one.node, one.device != THE_NODE, len(one.device), one.device),
        )
        if len(each.times) > 1
    ]


def _see(own: DeviceSeries, node: DeviceSeries | None, every: float) -> SeenDevice:
    steps = np.diff(own.times)
    longest = GAP_INTERVALS * max(every, float(np.median(steps)))
    use = own.columns["use_ratio"]
    phases = idle_phases(
        own.times, use, most=IDLE_RATIO, least_seconds=MIN_IDLE_SECONDS, longest_step=longest
    )
    if own.device != THE_NODE and _max(own.columns["dram_active_ratio"]) > IDLE_RATIO:
        moved = own.columns["dram_active_ratio"]
        phases = [phase for phase in phases if not _mean_in(own.times, moved, phase) > IDLE_RATIO]
    works = np.ones(len(own.times), dtype=np.bool_)
    for phase in phases:
        works &= (own.times < phase.begin) | (own.times > phase.end)
    is_idle = phases and works.mean() <= IDLE_RATIO
    chosen = np.ones_like(works) if is_idle else works
    device = {name: values[chosen] for name, values in own.columns.items()}
    machine: Mapping[str, Values] = {}
    if own.device != THE_NODE and node is not None:
        machine = _at(node, own.times[chosen])
        machine = {**machine, "cpu_use_ratio": machine["use_ratio"]}
    elif own.device == THE_NODE:
        machine = device
    seconds = float(own.times[-1] - own.times[0])
    cycles = (find_cycle(own.times[chosen], device[name]) for name in ("use_ratio", "power_watts"))
    cycle = max(filter(None, cycles), key=lambda found: found.window_ratio, default=None)
    return SeenDevice(
        series=own,
        phases=phases,
        known_seconds=float(steps[steps <= longest].sum()),
        job=job_type(device, machine),
        cycle=cycle,
        memory=find_forecast(own.times, own.columns["memory_used_bytes"], seconds / 8),
        use=find_forecast(own.times, use, seconds / 8),
    )


def advice_of(seen: Sequence[SeenDevice], *, command: str = "") -> Iterator[Advice]:
    """What to change.

    Args:
        seen: See `see`.
        command: A line for a shell that shows more; empty: there is none.
    """
    saturated = [str(each.series) for each in seen if each.job.kind == "compute"]
    for each in seen:
        if _has_job(each, seen):
            yield from _idle(each, saturated, command)
            yield from _waiting(each, command)
        yield from _memory(each, command)


def in_words(seen: Sequence[SeenDevice]) -> Iterator[str]:
    """What all devices do."""
    for each in seen:
        yield from _device_in_words(each, has_job=_has_job(each, seen))


def _has_job(device: SeenDevice, seen: Sequence[SeenDevice]) -> bool:
    """Whether jobs run on it: of a machine with GPUs these do."""
    node = device.series.node
    return device.series.device != THE_NODE or not any(
        each.series.node == node and each.series.device != THE_NODE for each in seen
    )


def _device_in_words(seen: SeenDevice, *, has_job: bool) -> Iterator[str]:
    """What a device does, a line each; the first one with what kind of job it is."""
    kind = {
        "idle": "is idle",
        "unknown": "kind of job: not told",
        "compute": "is bound by its own computing",
        "input": "is bound by its input",
        "communication": "is bound by communication",
    }[seen.job.kind]
    name = str(seen.series)
    if has_job:
        yield f"{name}: {kind}: {'; '.join(seen.job.reasons)}"
    if seen.cycle is not None:
        part = f"in {seen.cycle.window_ratio:.0%} of {seen.cycle.num_windows} windows"
        yield f"{name}: works in cycles of {seen.cycle.seconds:.3g} s, {part}"
    if seen.phases and seen.job.kind != "idle":
        yield f"{name}: {_phases(seen)}"
    changes = [
        change
        for change in find_changes(seen.series.times, seen.series.columns["use_ratio"])
        if abs(change.after - change.before) >= MIN_CHANGE_RATIO
    ]
    if len(changes) > MAX_CHANGES:
        yield f"{name}: its use changes {len(changes)} times"
    else:
        for change in changes:
            ago = float(seen.series.times[-1]) - change.at_seconds
            yield (
                f"{name}: its use changes from {change.before:.0%} to {change.after:.0%}, "
                f"{_minutes(ago)} before the end"
            )
    used, total = (seen.series.columns[f"memory_{name}_bytes"] for name in ("used", "total"))
    if np.isfinite(used).any():
        size = f" of {_last(total) / GIB:.3g} GiB" if np.isfinite(total).any() else ""
        yield f"{name}: memory: at most {_max(used) / GIB:.3g} GiB{size} are used"
    told = [("use", seen.use, 100.0, "%"), ("memory", seen.memory, 1 / GIB, " GiB")]
    for what, found, factor, unit in told:
        if found is not None:
            yield f"{name}: {what}: {forecast_words(found, factor, unit)}"
    if none := " and ".join(what for what, found, *_ in told if found is None):
        yield f"{name}: {none}: {forecast_words(None, 1.0, '')}"


def forecast_words(found: Forecast | None, factor: float, unit: str) -> str:
    """A forecast in words; `factor` is from its unit to the one that is told."""
    if found is None:
        return "no forecast: not better than naive"
    low, middle, high = (value * factor for value in (found.low, found.middle, found.high))
    words = f"{middle:.3g}{unit} ({low:.3g} to {high:.3g})"
    return f"{words} is expected by its {found.method}, {found.skill_ratio:.0%} nearer than naive"


def _idle(seen: SeenDevice, saturated: Sequence[str], command: str) -> Iterator[Advice]:
    """That a device stands still; `saturated` are those who are bound by their own computing."""
    series, idle = seen.series, seen.idle_seconds
    part = idle / seen.known_seconds if seen.known_seconds > 0 else 0.0
    stands_still = seen.is_idle_now and part >= STANDS_STILL_RATIO
    between = part >= BETWEEN_RATIO and len(seen.phases) >= BETWEEN_PHASES
    if not (stands_still or between):
        return
    evidence, unknown = [_phases(seen)], ["whether somebody has it reserved"]
    for name, words in (
        ("power_watts", "it draws {:.0f} W meanwhile"),
        ("dram_active_ratio", "its memory moves data for {:.0%} of the time meanwhile"),
    ):
        told = _in_phases(seen, series.columns.get(name, np.empty(0)))
        if math.isfinite(told):
            evidence.append(words.format(told))
    if len(evidence) == 1:  # nothing but its use
        unknown.append("whether it works in a way that its use does not show")
    if saturated:
        more = f" and {len(saturated) - MAX_NAMED} others" if len(saturated) > MAX_NAMED else ""
        evidence.append(f"saturated by what they do: {', '.join(saturated[:MAX_NAMED])}{more}")
    what = f"place the next job on {series}, or leave it out"
    used, total = (series.columns[f"memory_{name}_bytes"] for name in ("used", "total"))
    held = _last(used) / _last(total) if series.device != THE_NODE and _last(total) > 0 else 0.0
    if held >= HELD_RATIO and stands_still:
        holders = f" by {'; '.join(series.users)}" if series.users else ""
        evidence.append(
            f"{_last(used) / GIB:.3g} of {_last(total) / GIB:.3g} GiB are held{holders}"
        )
        what = f"end what holds the memory of {series} and does not use it"
    if not stands_still:
        what = f"queue jobs for {series}: it stands still between them"
    yield Advice(
        kind="idle",
        id=f"idle:{_id(series)}",
        what=what,
        evidence=tuple(evidence),
        idle_seconds=idle,
        command=command,
        unknown=tuple(unknown),
    )


def _waiting(seen: SeenDevice, command: str) -> Iterator[Advice]:
    job = seen.job
    if job.kind not in OPTIONS or not 0 < job.waiting_ratio < 1:
        return
    high = 1.0 / (1.0 - job.waiting_ratio) - 1.0
    yield Advice(
        kind="limit",
        id=f"limit:{job.kind}:{_id(seen.series)}",
        what=f"the job on {seen.series} is bound by "
        f"{'its input' if job.kind == 'input' else 'communication'}: try {OPTIONS[job.kind]}",
        evidence=job.reasons,
        gains=(Gain(goal="speed", low=0.0, high=high),),
        command=command,
        unknown=("how much of that time it takes away",),
    )


def _memory(seen: SeenDevice, command: str) -> Iterator[Advice]:
    series = seen.series
    used, total = (series.columns[f"memory_{name}_bytes"] for name in ("used", "total"))
    size = _last(total)
    if not size > 0:
        return
    found = seen.memory
    until = found.seconds_until(size) if found is not None else None
    if found is not None and until is not None and _is_near(until[1], seen.known_seconds):
        low, middle, high = (rate * HOUR / GIB for rate in found.per_second)
        early, expected, late = (seconds / HOUR for seconds in until)
        off = max(expected - early, late - expected)
        yield Advice(
            kind="memory",
            id=f"memory:{_id(series)}",
            what=f"look for what grows on {series}: its memory is full in "
            f"{expected:.2g} h ± {off:.1g}",
            evidence=(
                (
                    f"it grows by {middle:.2g} GiB/h ({low:.2g} to {high:.2g}), and "
                    f"{_last(used) / GIB:.3g} of {size / GIB:.3g} GiB are used"
                ),
                f"so far that was {found.skill_ratio:.0%} nearer than that it stays as it is",
            ),
            command=command,
            unknown=("whether it goes on to grow",),
        )
    elif series.device == THE_NODE and _median(used / total) >= FULL_RATIO:
        yield Advice(
            kind="memory",
            id=f"memory:{_id(series)}",
            what=f"give {series} more memory, or less to do: what is left is nearly nothing",
            evidence=(f"{_last(used) / GIB:.3g} of {size / GIB:.3g} GiB are used",),
            command=command,
        )


def _is_near(seconds: float, known_seconds: float) -> bool:
    return seconds <= min(MAX_AHEAD_RATIO * known_seconds, MAX_AHEAD_SECONDS)


def _phases(seen: SeenDevice) -> str:
    number = len(seen.phases)
    longest = max(phase.seconds for phase in seen.phases)
    words = f"idle for {_minutes(seen.idle_seconds)} of {_minutes(seen.known_seconds)}"
    if number > 1:
        words += f", in {number} phases of at most {_minutes(longest)}"
    return words + (", and now" if seen.is_idle_now else "")


def _id(series: DeviceSeries) -> str:
    return series.node if series.device == THE_NODE else f"{series.node}:{series.device}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"  # noqa: PLR2004


def _at(node: DeviceSeries, times: Values) -> dict[str, Values]:
    """A node's figures at other times: those of its nearest sample."""
    later = np.clip(np.searchsorted(node.times, times), 1, len(node.times) - 1)
    is_earlier = times - node.times[later - 1] < node.times[later] - times
    places = np.where(is_earlier, later - 1, later) if len(node.times) > 1 else later * 0
    return {name: values[places] for name, values in node.columns.items()}


def _in_phases(seen: SeenDevice, values: Values) -> float:
    if not len(values):
        return math.nan
    times = seen.series.times
    told = np.concatenate([values[(times >= p.begin) & (times <= p.end)] for p in seen.phases])
    told = told[np.isfinite(told)]
    return float(told.mean()) if len(told) else math.nan


def _mean_in(times: Values, values: Values, phase: Phase) -> float:
    told = values[(times >= phase.begin) & (times <= phase.end) & np.isfinite(values)]
    return float(told.mean()) if len(told) else math.nan


def _max(values: Values) -> float:
    told = values[np.isfinite(values)]
    return float(told.max()) if len(told) else math.nan


def _median(values: Values) -> float:
    told = values[np.isfinite(values)]
    return float(np.median(told)) if len(told) else math.nan


def _last(values: Values) -> float:
    told = values[np.isfinite(values)]
    return float(told[-1]) if len(told) else math.nan
