"""What limits a run, from its measured phases: with evidence, expected gain and next step.

Each judgement abstains (`INCOMPLETE`) where one of its inputs was not measured. `core.judge` keeps
the measurements that are judged here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hetero_hvd.core.memory_room import memory_room
from hetero_hvd.messages import Finding, FindingKind, StepTiming, WorkerId

BOUND_RATIO = 0.25
"""Part of a step that data or reduction must take to be named as what binds the run."""

IMBALANCE_RATIO = 0.1
"""Gain from other shares below this is noise: the balancer does not move for it either."""

UNEQUAL_RATIO = 0.9
"""A machine below this part of the fastest one's speed is worth a word, though it is well."""

OWN_PHASES = ("data_wait", "transfer", "forward", "backward", "optimizer")
Rows = Mapping[WorkerId, StepTiming]
"""A mean row of each member that has work."""

_NEXT = {
    "input": "more loader workers, faster storage, or less work per sample in the data set",
    "transfer": "pinned memory and smaller samples (types, sizes) on the way to the device",
    "compute": "faster devices, mixed precision, or a smaller model",
    "communication": "accumulation_steps, bucket_bytes or compression of the Trainer; if it is "
    "worse than it was, look at the network between the nodes",
}
_CAUSES = {
    "throttle": ("a CPU quota holds it back", "raise the CPU quota of {node}"),
    "memory": (
        "its processes wait for memory that the kernel takes from them",
        "more memory for {node}, or fewer processes on it",
    ),
    "input": ("it waits for its data", "faster storage or more loader workers on {node}"),
    "transfer": ("copying to its device takes long", "look at what else uses {node}'s bus"),
    "compute": (
        "its own computation takes long",
        "look at what else runs on {node}, and at its device's clock and temperature",
    ),
    "unknown": ("the cause is not known", "look at {node}: its load, clock, disk and network"),
}


@dataclass(kw_only=True)
class Episode:
    """A time in which a worker was slower than it should be.

    Attributes:
        worker: Who.
        since_step: Its first step.
        until_step: The first step after it; None while it lasts.
        speed_ratio: Speed / what it should be, by the newest report.
        cause: As in `StragglerReported`.
        cost_seconds_per_step: By how much a step would be shorter if it were well.
        cost_seconds: In all.
    """

    worker: WorkerId
    since_step: int
    speed_ratio: float
    cause: str
    until_step: int | None = None
    cost_seconds_per_step: float = math.nan
    cost_seconds: float = 0.0


def mean_row(rows: Sequence[StepTiming]) -> StepTiming:
    """Mean over all their steps; a phase that was not measured in one of them is NaN."""
    steps = sum(row.num_steps for row in rows)
    means = {
        name: sum(row.num_steps * getattr(row, name) for row in rows) / steps
        for name in StepTiming.__struct_fields__
        if name not in ("num_steps", "local_batch_size")
    }
    return StepTiming(num_steps=steps, local_batch_size=rows[-1].local_batch_size, **means)


def judge(rows: Rows, episodes: Sequence[Episode] = ()) -> list[Finding]:
    """Who is or was slow, what binds the run, and what other shares would gain.

    Args:
        rows: See `Rows`.
        episodes: Of workers that were slower than they should be.
    """
    slow = [_straggler(episode, rows) for episode in episodes]
    loaded = {worker: row for worker, row in rows.items() if row.local_batch_size > 0}
    return [*slow, _bound(loaded), _imbalance(loaded), memory_room(loaded)]


def straggler_cost_seconds(rows: Rows, worker: WorkerId, speed_ratio: float) -> float:
    """By how much a step would be shorter if a worker had its own speed.

    While the shares stay as they are all wait for it. Once the others have taken over a part of its
    work, and all finish together, it costs what they could do instead, with times proportional to
    shares.

    Args:
        rows: See `Rows`.
        worker: Who is slow.
        speed_ratio: Its speed / what it should be.

    Returns:
        Seconds per step, >= 0; NaN if one of the workers was not measured.
    """
    times = {name: row.busy_seconds for name, row in rows.items() if row.local_batch_size > 0}
    is_known = all(math.isfinite(seconds) and seconds > 0 for seconds in times.values())
    if worker not in times or not is_known or not math.isfinite(speed_ratio):
        return math.nan
    well = times | {worker: times[worker] * speed_ratio}
    waiting = max(times.values()) - max(well.values())
    best = _best_seconds(rows, times)
    is_balanced = max(times.values()) <= (1 + IMBALANCE_RATIO) * best
    return max(0.0, waiting, best - _best_seconds(rows, well) if is_balanced else 0.0)


def _best_seconds(rows: Rows, times: Mapping[WorkerId, float]) -> float:
    """With t_i proportional to x_i the best time of the batch is B / Σ (x_i / t_i)."""
    shares = {worker: rows[worker].local_batch_size for worker in times}
    return sum(shares.values()) / sum(shares[worker] / times[worker] for worker in times)


def _straggler(episode: Episode, rows: Rows) -> Finding:
    worker, cost = episode.worker, episode.cost_seconds_per_step
    why, what_to_do = _CAUSES.get(episode.cause, _CAUSES["unknown"])
    price = ""
    if math.isfinite(cost):
        price = f"; it costs {cost * 1e3:.0f} ms a step, {episode.cost_seconds:.1f} s in all"
    speed = f"{episode.speed_ratio:.2f} of its own speed ({episode.cause}: {why}){price}"
    words = f"{worker} is slow since step {episode.since_step}: {speed}"
    evidence = {
        "speed_ratio": episode.speed_ratio,
        "since_step": float(episode.since_step),
        "cost_seconds_per_step": cost,
        "cost_seconds": episode.cost_seconds,
    }
    steps = [row.step_seconds for row in rows.values() if row.step_seconds > 0]
    gain = cost / (max(steps) - cost) if steps and 0 < cost < max(steps) else None
    if episode.until_step is not None:
        words = f"{worker} was slow from step {episode.since_step} to {episode.until_step}: {speed}"
        words = words.replace("it costs", "it cost")
        evidence["until_step"] = float(episode.until_step)
        gain, what_to_do = None, ""
    return Finding(
        kind="straggler",
        is_complete=True,
        worker=worker,
        cause=episode.cause,
        is_past=episode.until_step is not None,
        words=words,
        evidence=evidence,
        max_gain_ratio=gain,
        next_step=what_to_do.format(node=worker.node),
    )


def _bound(rows: Rows) -> Finding:
    """The slowest worker sets the pace; reduction is what even the last one to be ready waits."""
    values = [v for r in rows.values() for v in (r.busy_seconds, r.comm_wait_seconds)]
    values += [row.step_seconds for row in rows.values()]
    if not values or not all(map(math.isfinite, values)):
        return _incomplete("compute", "what binds the run: not every phase is measured")
    worker = max(rows, key=lambda name: rows[name].busy_seconds)
    row = rows[worker]
    if row.step_seconds <= 0:
        return _incomplete("compute", "what binds the run: no step has a duration")
    reduction = min(row.comm_wait_seconds for row in rows.values())
    parts: dict[FindingKind, float] = {
        "input": row.data_wait_seconds / row.step_seconds,
        "transfer": row.transfer_seconds / row.step_seconds,
        "communication": reduction / row.step_seconds,
    }
    kind = max(parts, key=lambda name: parts[name])
    ratio = parts[kind]
    own = row.busy_seconds - row.data_wait_seconds - row.transfer_seconds
    compute = own / row.step_seconds
    evidence = {f"{name}_ratio": value for name, value in parts.items()}
    evidence["compute_ratio"] = compute
    other = 1.0 - (row.busy_seconds + row.comm_wait_seconds) / row.step_seconds
    if other > max(ratio, compute):
        words = f"what binds the run: {other:.0%} of a step on {worker} is in no phase"
        return msgspec.structs.replace(_incomplete("compute", words), evidence=evidence)
    if ratio < BOUND_RATIO:
        kind, ratio = "compute", compute
    where = "is reduction" if kind == "communication" else f"on {worker}, which sets the pace"
    return Finding(
        kind=kind,
        is_complete=True,
        words=f"bound by {kind}: {ratio:.0%} of a step {where}",
        evidence=evidence,
        max_gain_ratio=ratio / (1.0 - ratio) if kind != "compute" and ratio < 1.0 else None,
        next_step=_NEXT[kind],
    )


def _imbalance(rows: Rows) -> Finding:
    times = {worker: row.busy_seconds for worker, row in rows.items()}
    if not times or not all(math.isfinite(t) and t > 0 for t in times.values()):
        return _incomplete("imbalance", "balance: not every worker's own time is measured")
    longest, best = max(times.values()), _best_seconds(rows, times)
    gain = longest / best - 1.0
    evidence = {"slowest_seconds": longest, "best_seconds": best}
    about = _slowest(rows)
    if gain <= IMBALANCE_RATIO:
        words = f"balanced: other shares would gain {gain:.0%} at most; "
        words += f"{about}, and its share makes up for it" if about else "no machine is slower"
        return Finding(kind="imbalance", is_complete=True, words=words, evidence=evidence)
    worker = max(times, key=lambda name: times[name])
    return Finding(
        kind="imbalance",
        is_complete=True,
        worker=worker,
        words=f"imbalance left: the others wait for {worker}" + (f"; {about}" if about else ""),
        evidence=evidence,
        max_gain_ratio=gain,
        next_step="let it train longer with balance on, or look at the capacities that limit it",
    )


def _slowest(rows: Rows) -> str:
    """The slowest machine of unequal ones in words: that it is slower does not mean it is ill."""
    speeds = {worker: row.local_batch_size / row.busy_seconds for worker, row in rows.items()}
    slowest, fastest = min(speeds, key=speeds.__getitem__), max(speeds, key=speeds.__getitem__)
    ratio = speeds[slowest] / speeds[fastest]
    if ratio >= UNEQUAL_RATIO:
        return ""
    row = rows[slowest]
    own = {phase: getattr(row, f"{phase}_seconds") for phase in OWN_PHASES}
    phase = max(own, key=own.__getitem__)
    return (
        f"{slowest} is the slowest machine, {ratio:.2f} of {fastest}'s speed, with "
        f"{own[phase] / row.busy_seconds:.0%} of its own time in {phase.replace('_', ' ')} and "
        f"{row.local_batch_size} of {sum(r.local_batch_size for r in rows.values())} samples"
    )


def _incomplete(kind: FindingKind, words: str) -> Finding:
    return Finding(kind=kind, is_complete=False, words=words)
