"""What limits a run, from its measured phases: with evidence, expected gain and next step.

Each judgement abstains (`INCOMPLETE`) where one of its inputs was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

BOUND_RATIO = 0.25
"""Part of a step that data or reduction must take to be named as what binds the run."""

IMBALANCE_RATIO = 0.1
"""Gain from other shares below this is noise: the balancer does not move for it either."""

Kind = Literal["input", "transfer", "compute", "communication", "imbalance", "memory", "straggler"]


@dataclass(frozen=True, kw_only=True)
class WorkerMeans:
    """One worker's means over the judged part of a run, seconds per step; NaN: not measured.

    Attributes:
        name: `node:slot`.
        share: Samples per step, >= 0.
        compute_seconds: Forward, backward and optimizer.
    """

    name: str
    share: float
    data_wait_seconds: float
    transfer_seconds: float
    compute_seconds: float
    comm_wait_seconds: float
    step_seconds: float

    @property
    def busy_seconds(self) -> float:
        """Own time in a step; NaN if a part of it was not measured."""
        return self.data_wait_seconds + self.transfer_seconds + self.compute_seconds


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One judgement about a run.

    Attributes:
        kind: What it is about.
        is_complete: False where it abstains.
        words: The judgement for people.
        evidence: The numbers behind it.
        max_gain_ratio: Throughput could grow by at most this part; None: not known.
        next_step: What to do, if anything.
    """

    kind: Kind
    is_complete: bool
    words: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    max_gain_ratio: float | None = None
    next_step: str = ""

    def __str__(self) -> str:
        gain = f"; up to {self.max_gain_ratio:.0%} faster" if self.max_gain_ratio else ""
        step = f". Next: {self.next_step}" if self.next_step else ""
        return f"{'' if self.is_complete else 'INCOMPLETE: '}{self.words}{gain}{step}"


_NEXT = {
    "input": "more loader workers, faster storage, or less work per sample in the data set",
    "transfer": "pinned memory and smaller samples (types, sizes) on the way to the device",
    "compute": "faster devices, mixed precision, or a smaller model",
    "communication": "accumulation_steps, bucket_bytes or compression of the Trainer",
}


def judge(workers: Sequence[WorkerMeans]) -> list[Finding]:
    """What binds the run, and what other shares would gain.

    Args:
        workers: All that trained; those without a share are left out.
    """
    loaded = [worker for worker in workers if worker.share > 0]
    return [_bound(loaded), _imbalance(loaded), _memory()]


def _bound(workers: Sequence[WorkerMeans]) -> Finding:
    """The slowest worker sets the pace; reduction is what even the last one to be ready waits."""
    values = [v for w in workers for v in (w.busy_seconds, w.comm_wait_seconds, w.step_seconds)]
    if not values or not all(map(math.isfinite, values)):
        words = "what binds the run: not every phase of every worker was measured"
        return Finding(kind="compute", is_complete=False, words=words)
    slowest = max(workers, key=lambda worker: worker.busy_seconds)
    if slowest.step_seconds <= 0:
        words = "what binds the run: no step has a duration"
        return Finding(kind="compute", is_complete=False, words=words)
    reduction = min(worker.comm_wait_seconds for worker in workers)
    parts: dict[Kind, float] = {
        "input": slowest.data_wait_seconds / slowest.step_seconds,
        "transfer": slowest.transfer_seconds / slowest.step_seconds,
        "communication": reduction / slowest.step_seconds,
    }
    kind = max(parts, key=lambda name: parts[name])
    ratio = parts[kind]
    compute = slowest.compute_seconds / slowest.step_seconds
    evidence = {f"{name}_ratio": value for name, value in parts.items()}
    evidence["compute_ratio"] = compute
    other = 1.0 - (slowest.busy_seconds + slowest.comm_wait_seconds) / slowest.step_seconds
    if other > max(ratio, compute):
        words = f"what binds the run: {other:.0%} of a step on {slowest.name} is in no phase"
        return Finding(kind="compute", is_complete=False, words=words, evidence=evidence)
    if ratio < BOUND_RATIO:
        kind, ratio = "compute", compute
    words = f"bound by {kind}: {ratio:.0%} of a step on {slowest.name}, which sets the pace"
    return Finding(
        kind=kind,
        is_complete=True,
        words=words,
        evidence=evidence,
        max_gain_ratio=ratio / (1.0 - ratio) if kind != "compute" and ratio < 1.0 else None,
        next_step=_NEXT[kind],
    )


def _imbalance(workers: Sequence[WorkerMeans]) -> Finding:
    """With t_i proportional to x_i the best time of the batch is B / Σ (x_i / t_i)."""
    times = [worker.busy_seconds for worker in workers]
    if not times or not all(math.isfinite(t) and t > 0 for t in times):
        words = "imbalance: not every worker's own time was measured"
        return Finding(kind="imbalance", is_complete=False, words=words)
    best = sum(w.share for w in workers) / sum(w.share / w.busy_seconds for w in workers)
    gain = max(times) / best - 1.0
    evidence = {"slowest_seconds": max(times), "best_seconds": best}
    if gain <= IMBALANCE_RATIO:
        words = f"balanced: other shares would gain {gain:.0%} at most"
        return Finding(kind="imbalance", is_complete=True, words=words, evidence=evidence)
    slowest = max(workers, key=lambda worker: worker.busy_seconds)
    return Finding(
        kind="imbalance",
        is_complete=True,
        words=f"imbalance left: the others wait for {slowest.name}",
        evidence=evidence,
        max_gain_ratio=gain,
        next_step="let it train longer with balance on, or look at the capacities that limit it",
    )


def _memory() -> Finding:
    words = "memory head room: the size of the devices' memory is not recorded"
    return Finding(kind="memory", is_complete=False, words=words)
