"""A trace by chance, of models whose rates were published; the caller's generator decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.jobs import JobRequest
from hetero_hvd.core.queue.set_rate import rate_of
from hetero_hvd.core.simulation.queues.gavel_rates import GAVEL_KINDS, GAVEL_RATES
from hetero_hvd.core.simulation.queues.trace_job import TraceJob

HOUR_SECONDS = 3600.0
GIB = 1 << 30
MEMORY = {"v100": 16 * GIB, "p100": 16 * GIB, "k80": 12 * GIB}


@dataclass(frozen=True, kw_only=True)
class TraceRecipe:
    """What a trace is drawn from. The defaults are those of a small lab with eight unlike GPUs.

    Attributes:
        num_jobs: Jobs.
        num_users: They submit equally often.
        mean_gap_seconds: Between two submissions, drawn from an exponential distribution.
        hours: Shortest and longest job, on as many V100 as it asks for; drawn evenly from their
            logarithms.
        counts: Devices asked for, each with its probability.
        most_devices: What a job may grow to. Its global batch is that of so many devices, under
            each policy.
        has_communication: Whether a step takes longer on more devices, as Gavel's authors measured
            it; what they measured on one device only runs on one then. Else a set does the sum of
            its devices' rates, and 0.95 of it if they are of several kinds.
    """

    num_jobs: int = 150
    num_users: int = 8
    mean_gap_seconds: float = 1.2 * HOUR_SECONDS
    hours: tuple[float, float] = (0.2, 8.0)
    counts: tuple[tuple[int, float], ...] = ((1, 0.7), (2, 0.1), (4, 0.2))
    most_devices: int = 8
    has_communication: bool = False


def eight_devices(copies: int = 1) -> tuple[QueueDevice, ...]:
    """2 V100, 2 P100 and 4 K80, in nodes of two, and as many again for each copy."""
    speeds = mean_speeds()
    kinds = ("v100", "p100", "k80", "k80") * copies
    return tuple(
        QueueDevice(
            device=f"{kind}-{node}-{slot}",
            kind=kind,
            node=f"node{node}",
            memory_bytes=MEMORY[kind],
            relative_speed=speeds[kind],
        )
        for node, kind in enumerate(kinds)
        for slot in range(2)
    )


def mean_speeds() -> dict[str, float]:
    """Kind to its mean relative speed over the models; 1 for the fastest kind."""
    ratios = np.array([np.array(rates) / max(rates) for rates, _ in GAVEL_RATES.values()])
    means = ratios.mean(axis=0) / ratios.mean(axis=0).max()
    return dict(zip(GAVEL_KINDS, means.tolist(), strict=True))


def generated_trace(recipe: TraceRecipe, random: np.random.Generator) -> Sequence[TraceJob]:
    """Jobs in the order of their submission."""
    jobs, at = [], 0.0
    models = tuple(GAVEL_RATES)
    counts = [count for count, _ in recipe.counts]
    chances = [chance for _, chance in recipe.counts]
    for number in range(recipe.num_jobs):
        at += float(random.exponential(recipe.mean_gap_seconds))
        rates, seconds = GAVEL_RATES[models[int(random.integers(len(models)))]]
        low, high = np.log(recipe.hours)
        hours = float(np.exp(random.uniform(low, high)))
        count = int(random.choice(counts, p=chances))
        user = int(random.integers(recipe.num_users))
        most = 1 if recipe.has_communication and not seconds else recipe.most_devices
        count = min(count, most)
        costs = [recipe.has_communication * each / most for each in seconds or (0.0, 0.0, 0.0)]
        fastest = rate_of(rates[0] * count, costs[0], count, is_mixed=False)
        request = JobRequest(
            job=f"job{number:05d}",
            user=f"user{user:03d}",
            max_devices=most,
            work=hours * HOUR_SECONDS * fastest,
            rates=dict(zip(GAVEL_KINDS, rates, strict=True)),
            communication_seconds=dict(zip(GAVEL_KINDS, costs, strict=True)),
        )
        jobs.append(TraceJob(request=request, submit_seconds=at, num_devices=count))
    return jobs
