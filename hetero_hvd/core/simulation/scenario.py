"""A described cluster: the truth about each worker, and what happens to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hetero_hvd.core.simulation.jitter import DEFAULT_SPIKE_RATIO, Jitter


class TrueCurve(Protocol):
    """The truth about a worker."""

    def step_seconds(self, local_batch_size: int) -> float:
        """True mean busy seconds of a step with that many samples."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A device that computes samples in blocks: a started block takes as long as a full one.

    Nobody is told the size of its blocks.

    Attributes:
        block_size: Samples in a block, > 0.
        block_seconds: Time of a block, > 0.
        overhead_seconds: Batch-independent time of a step, >= 0.
    """

    block_size: int
    block_seconds: float
    overhead_seconds: float = 0.0

    def step_seconds(self, local_batch_size: int) -> float:
        """See `TrueCurve`."""
        num_blocks = -(-local_batch_size // self.block_size)
        return self.overhead_seconds + num_blocks * self.block_seconds


@dataclass(frozen=True, kw_only=True)
class Swing:
    """A worker whose speed swings between two levels for ever.

    Attributes:
        worker: Index of the worker.
        time_ratio: Its step times at the slow level, as a multiple of its curve, > 0.
        num_steps: Steps at one level before it changes to the other, > 0; the first is its curve.
    """

    worker: int
    time_ratio: float
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something happens to a worker.

    Attributes:
        step: When it begins.
        worker: Index of the worker.
        time_ratio: Its step times from then on, as a multiple of its curve, > 0; inf: it is lost.
        over_steps: The time ratio is reached after so many steps, evenly; 0 at once.
    """

    step: int
    worker: int
    time_ratio: float
    over_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A described cluster.

    Attributes:
        curves: Mean busy seconds, per worker.
        global_batch_size: Samples per step.
        noise_ratio: Coefficient of variation of the log-normal noise on each step of a worker.
        spike_probability: Of a step of a worker to take `spike_ratio` times as long.
        spike_ratio: See above.
        link_seconds: Reduction time through each worker's link; the slowest one counts.
        changes: What happens, in any order.
        swings: Workers whose speed swings.
        coupling_ratio: By how much a busy worker slows each other one, as if they shared a
            processor: with c, two busy workers each take 1 + c times as long; 0: not at all.
        capacities: Largest local batch per worker, samples; -1 = not limited.
        prefetch_steps: See `WorkersJoined`.
        recorded: Time ratios of a recorded run, (steps, workers); they repeat after its end.
        can_calibrate: See `WorkersJoined`.
    """

    curves: tuple[TrueCurve, ...]
    global_batch_size: int
    noise_ratio: float = 0.0
    spike_probability: float = 0.0
    spike_ratio: float = DEFAULT_SPIKE_RATIO
    link_seconds: tuple[float, ...] = ()
    changes: tuple[Change, ...] = ()
    swings: tuple[Swing, ...] = ()
    coupling_ratio: float = 0.0
    capacities: tuple[int, ...] = ()
    prefetch_steps: int = 0
    recorded: tuple[tuple[float, ...], ...] = ()
    can_calibrate: bool = False

    @property
    def jitter(self) -> Jitter:
        """The noise on each step of a worker."""
        return Jitter(
            noise_ratio=self.noise_ratio,
            spike_probability=self.spike_probability,
            spike_ratio=self.spike_ratio,
        )

    def time_ratios(self, step: int) -> tuple[float, ...]:
        """Step time of each worker as a multiple of its curve; inf: it is not there."""
        ratios = [1.0] * len(self.curves)
        for change in sorted(self.changes, key=lambda change: change.step):
            if step >= change.step:
                part = min(1.0, (step - change.step) / max(1, change.over_steps))
                part = part if change.over_steps else 1.0
                start = ratios[change.worker]
                start = 1.0 if math.isinf(start) else start
                lost = math.isinf(change.time_ratio)
                ratios[change.worker] = (
                    math.inf if lost else start + part * (change.time_ratio - start)
                )
        for swing in self.swings:
            if step // swing.num_steps % 2:
                ratios[swing.worker] *= swing.time_ratio
        return tuple(ratios)

    def coupled_seconds(self, own_seconds: Sequence[float]) -> tuple[float, ...]:
        """When each worker is done, from the seconds that each needs for its share alone.

        While k workers are busy, each of them runs at 1 / (1 + c (k - 1)) of its speed.
        """
        if not self.coupling_ratio:
            return tuple(own_seconds)
        done_at, clock, done = [0.0] * len(own_seconds), 0.0, 0.0
        order = sorted(range(len(own_seconds)), key=own_seconds.__getitem__)
        for position, index in enumerate(order):
            num_others = len(order) - position - 1
            clock += (own_seconds[index] - done) * (1 + self.coupling_ratio * num_others)
            done = own_seconds[index]
            done_at[index] = clock
        return tuple(done_at)
