"""What kind of job a device does, by what it and its machine do, without a word from the job.

A device's use alone does not tell: a kernel that waits for others counts as use (the manual of
nvidia-smi: "percent of time over the past sample period during which one or more kernels was
executing"). So the times at which it works are told from those at which it waits by what it moves
or draws, and a kind is named only where something else is busy just while the device waits: its
processors or its disks (input), or its links, as much in one direction as in the other
(communication).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Kind = Literal["idle", "input", "communication", "compute", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MIN_SAMPLES = 60
"""Fewer tell nothing."""

IDLE_RATIO = 0.05
"""A device of which 95 % of the samples show at most so much is idle."""

MIN_KNOWN_RATIO = 0.8
"""Part of the samples that must tell a figure for it to be used."""

BUSY_RATIO = 0.9
"""A device that works for so much of the time is bound by its own work."""

SATURATED_CPU_RATIO = 0.95
"""Processors of a machine that are used so much have nothing left for a loader."""

WAITING_USE_RATIO = 0.8
"""A device below it, whose samples do not tell work from waiting, waits for a part of each."""

MIN_CONTRAST = 0.5
"""Of its level at work, by which a device must be below it when it waits."""

MIN_TURNS = 6
"""Changes between work and waiting that are enough to compare the two."""

MIN_RATIO = 1.5
"""What is busy while the device waits is so many times as busy as else."""

MIN_T = 4.0
"""And that by so many standard errors (Welch's t), of as many turns as there were."""

ONE_WAY_RATIO = 3.0
"""A link that receives so many times what it sends brings data; a reduction goes both ways."""

INPUT = {
    "cpu_use_ratio": ("its processors are", 0.1),
    "disk_read_bytes_per_second": ("its disks are", 1e6),
}
LINKS = {
    "nvlink": ("its NVLinks are", 1e6),
    "network": ("its network is", 1e6),
}
"""Figure to what it is of, and by how much it must at least be busier while the device waits."""


@dataclass(frozen=True, kw_only=True)
class JobType:
    """What kind of job a device does.

    Attributes:
        kind: `unknown`: the evidence is missing, or speaks for two.
        reasons: What it stands on, in words with figures; never empty.
        waiting_ratio: Part of the time in which the device waits; NaN: not told.
    """

    kind: Kind
    reasons: tuple[str, ...]
    waiting_ratio: float = float("nan")


def job_type(device: Mapping[str, Values], machine: Mapping[str, Values]) -> JobType:
    """The kind of job.

    Args:
        device: Figure of the device to its samples: `use_ratio`, of a GPU also `power_watts`,
            `dram_active_ratio`, `nvlink_received_bytes_per_second` and `..._sent_...`; NaN where it
            is not known. Times in which nothing ran are left out before.
        machine: The same of its machine at the same times: `cpu_use_ratio`,
            `disk_read_bytes_per_second`, `network_received_bytes_per_second` and `..._sent_...`;
            without `cpu_use_ratio` where the device is the machine itself.
    """
    use = device.get("use_ratio", np.empty(0))
    if len(use) < MIN_SAMPLES or not _is_known(use):
        number = int(np.isfinite(use).sum())
        few = f"fewer than {MIN_SAMPLES} samples tell its use"
        part = f"only {number} of {len(use)} samples tell its use"
        return _unknown(few if number < MIN_SAMPLES else part)
    moved = device.get("dram_active_ratio", np.full(len(use), np.nan))
    if _p95(use) <= IDLE_RATIO and not _p95(moved) > IDLE_RATIO:
        return JobType(kind="idle", reasons=(f"at most {_p95(use):.0%} of it are used",))
    if _is_known(moved) and _p95(moved) <= IDLE_RATIO:
        return _unknown(
            f"{np.nanmean(use):.0%} of it are used, but its memory moves data for at most "
            f"{_p95(moved):.0%} of the time: it waits in a kernel, or computes without memory"
        )
    found = _work(device)
    if found is None:
        return _by_levels(use, moved, machine)
    name, is_work = found
    waiting = float(1.0 - is_work.mean())
    told = f"by {name} it works for {1 - waiting:.0%} of the time"
    if waiting <= 1.0 - BUSY_RATIO:
        return JobType(kind="compute", reasons=(told,), waiting_ratio=waiting)
    return _by_what_is_busy(told, is_work, _beside(device, machine))


def _unknown(reason: str) -> JobType:
    return JobType(kind="unknown", reasons=(reason,))


def _work(device: Mapping[str, Values]) -> tuple[str, NDArray[np.bool_]] | None:
    """By which figure the device works at which samples; None: it has no two levels.

    The two are parted where the variance between them is largest (N. Otsu, 1979: "A threshold
    selection method from gray-level histograms").
    """
    names = {
        "dram_active_ratio": "what its memory moves",
        "power_watts": "the power that it draws",
        "use_ratio": "its use",
    }
    for figure, name in names.items():
        values = device.get(figure)
        if values is None or not _is_known(values):
            continue
        known = np.where(np.isfinite(values), values, np.nanmedian(values))
        parted = known > _otsu(known)
        if not parted.any() or parted.all():
            continue
        high, low = float(known[parted].mean()), float(known[~parted].mean())
        if high > 0 and low <= (1.0 - MIN_CONTRAST) * high:
            return name, parted
    return None


def _otsu(values: Values) -> float:
    ordered = np.sort(values)
    number = len(ordered)
    sums = np.cumsum(ordered)[:-1]
    counts = np.arange(1, number)
    gaps = (sums[-1] + ordered[-1] - sums) / (number - counts) - sums / counts
    best = int(np.argmax(counts * (number - counts) * gaps**2))
    return float((ordered[best] + ordered[best + 1]) / 2)


def _by_levels(use: Values, moved: Values, machine: Mapping[str, Values]) -> JobType:
    """Where samples are longer than steps, all that is known are means."""
    mean, cpu = float(np.nanmean(use)), machine.get("cpu_use_ratio")
    told = f"{mean:.0%} of it are used all the time"
    if cpu is not None and _is_known(cpu) and mean < WAITING_USE_RATIO:
        used = float(np.nanmedian(cpu))
        if used >= SATURATED_CPU_RATIO:
            reasons = (told, f"{used:.0%} of its machine's processors are used")
            return JobType(kind="input", reasons=reasons, waiting_ratio=1.0 - mean)
    if mean >= BUSY_RATIO and cpu is None:
        return JobType(kind="compute", reasons=(told,), waiting_ratio=1.0 - mean)
    if mean >= BUSY_RATIO and _is_known(moved):
        active = float(np.nanmean(moved))
        reasons = (told, f"its memory moves data for {active:.0%} of the time")
        return JobType(kind="compute", reasons=reasons, waiting_ratio=1.0 - mean)
    why = "waiting in a kernel counts as use" if mean >= BUSY_RATIO else "its samples tell no steps"
    return _unknown(f"{told}, and {why}")


def _beside(device: Mapping[str, Values], machine: Mapping[str, Values]) -> dict[str, Values]:
    """What may be busy while the device waits; links as the sum of both directions."""
    found = {name: machine[name] for name in INPUT if name in machine}
    for name, figures in (("nvlink", device), ("network", machine)):
        ways = [figures.get(f"{name}_{way}_bytes_per_second") for way in ("received", "sent")]
        if (received := ways[0]) is not None and (sent := ways[1]) is not None:
            found[name] = received + sent
            found[f"{name}_received"], found[f"{name}_sent"] = received, sent
    return {name: values for name, values in found.items() if _is_known(values)}


def _by_what_is_busy(
    told: str, is_work: NDArray[np.bool_], beside: Mapping[str, Values]
) -> JobType:
    waiting = float(1.0 - is_work.mean())
    num_turns = int(np.count_nonzero(np.diff(is_work)))
    if num_turns < MIN_TURNS:
        return _unknown(f"{told}, but turns between work and waiting only {num_turns} times")
    found: dict[Kind, list[str]] = {"input": [], "communication": []}
    for name, (what, least) in (INPUT | LINKS).items():
        for words in _busier(beside.get(name), is_work, num_turns, least):
            kind: Kind = "input" if name in INPUT else "communication"
            if kind == "communication" and _is_one_way(beside, name, is_work):
                kind, words = "input", f"{words}, of which most is received"  # noqa: PLW2901
            found[kind].append(f"while it waits, {what} busier: {words}")
    kinds = [kind for kind, reasons in found.items() if reasons]
    if len(kinds) == 1:
        reasons = (told, *found[kinds[0]])
        return JobType(kind=kinds[0], reasons=reasons, waiting_ratio=waiting)
    reasons = tuple(reason for kind in kinds for reason in found[kind])
    why = "which speaks for two kinds" if kinds else "nothing that is measured is busier meanwhile"
    return JobType(kind="unknown", reasons=(told, *reasons, why), waiting_ratio=waiting)


def _busier(
    values: Values | None, is_work: NDArray[np.bool_], num_turns: int, least: float
) -> Iterator[str]:
    """Words for what is busier while the device waits; none: it is not, or not for certain."""
    if values is None:
        return
    known = np.isfinite(values)
    waits, works = values[known & ~is_work], values[known & is_work]
    if len(waits) < MIN_TURNS or len(works) < MIN_TURNS:
        return
    there, else_ = float(waits.mean()), float(works.mean())
    # Samples of one turn are alike: a mean is as certain as there are turns.
    number = num_turns / 2
    error = float(np.sqrt((waits.var() + works.var()) / number))
    if there - else_ >= max(least, MIN_T * error) and there >= MIN_RATIO * else_:
        yield _amounts(there, else_)


def _amounts(there: float, else_: float) -> str:
    if there <= 1.0:
        return f"{there:.0%} instead of {else_:.0%}"
    first, second = (f"{float(f'{rate / 1e6:.3g}'):g}" for rate in (there, else_))
    return f"{first} instead of {second} MB/s"


def _is_one_way(beside: Mapping[str, Values], name: str, is_work: NDArray[np.bool_]) -> bool:
    received, sent = (beside.get(f"{name}_{way}") for way in ("received", "sent"))
    if received is None or sent is None:
        return False
    received, sent = received[~is_work], sent[~is_work]
    return float(np.nanmean(received)) >= ONE_WAY_RATIO * float(np.nanmean(sent))


def _is_known(values: Values) -> bool:
    return len(values) > 0 and float(np.isfinite(values).mean()) >= MIN_KNOWN_RATIO


def _p95(values: Values) -> float:
    known = values[np.isfinite(values)]
    return float(np.percentile(known, 95)) if len(known) else float("nan")
