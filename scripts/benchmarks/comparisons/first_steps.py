"""From the first step on, with nothing known: workers that measure themselves first, or do not.

What is measured before the first step counts as a part of it. Beside a known cluster stand some
that are drawn anew in each run, so that nothing is fitted to them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from statistics import median

import numpy as np

from benchmarks.numbers import Number
from benchmarks.peers import MEASURED, Cluster, Run
from benchmarks.peers import PEERS as RACE
from benchmarks.tables import Effort, Say, Table, median_of, share_of_ideal, take_turns

PEERS = (MEASURED, *RACE)
FIRST = 5
GOAL, FIRST_GOAL = 0.93, 0.85
NUM_DRAWN = 2
SAMPLE_SECONDS, STEP_SECONDS, SLOWEST = 0.00075, 0.154, 0.1
"""Of the fastest device; of the best plan, about; the least part of the fastest one's speed."""


def first_steps(known: Mapping[str, Cluster], effort: Effort, say: Say) -> Iterator[Table]:
    """A table for each cluster, and for each of those that are drawn.

    Args:
        known: Title to cluster.
        effort: How much to measure.
        say: For progress.
    """
    drawn = dict(drawn_cluster(secrets.randbelow(10**6)) for _ in range(NUM_DRAWN))
    for title, cluster in {**known, **drawn}.items():
        yield _table(title, cluster, effort, say)


def drawn_cluster(seed: int) -> tuple[str, Cluster]:
    """Three or four devices of speeds drawn by a seed: a title and the cluster."""
    random = np.random.default_rng(seed)
    speeds = np.exp(random.uniform(np.log(SLOWEST), 0, random.integers(2, 4)))
    parts = (1.0, *(round(speed, 2) for speed in speeds.tolist()))
    cluster = Cluster(
        seconds_per_sample=tuple(SAMPLE_SECONDS / part for part in parts),
        overhead_seconds=0.004,
        global_batch_size=round(STEP_SECONDS / SAMPLE_SECONDS * sum(parts)),
        price_per_hour=parts,
    )
    return f"Devices at {' : '.join(f'{part:g}' for part in parts)}, drawn by {seed}", cluster


def share_of_first(cluster: Cluster, run: Run, num_steps: int) -> float:
    """Speed of the first steps / summed speed of the devices."""
    seconds = run.step_seconds[:num_steps]
    samples = cluster.global_batch_size * len(seconds)
    return samples / sum(seconds) / cluster.ideal_samples_per_second


def _table(title: str, cluster: Cluster, effort: Effort, say: Say) -> Table:
    turns = take_turns(cluster, PEERS, effort, say)
    table = Table(
        title=f"{title}: from the first step on",
        text=f"Batch {cluster.global_batch_size}, {effort.num_steps} steps, nothing known before "
        "but by `static` and `oracle`. What workers measure before the first step is a part of it; "
        f"`{MEASURED}` is ours with `calibrate: auto`. Shares of the devices' summed speed.",
        columns=("peer", "all steps", f"the first {FIRST}", "the first one", "second half"),
    )
    for peer in PEERS:
        runs = [turn[peer] for turn in turns if peer in turn]
        if not runs:
            continue
        of = {
            num_steps: [share_of_first(cluster, run, num_steps) for run in runs]
            for num_steps in (effort.num_steps, FIRST, 1)
        }
        last = [share_of_ideal(cluster, run) for run in runs]
        table.rows.append((peer, *map(median_of, of.values()), median_of(last)))
        table.measured |= {peer: of[effort.num_steps], f"{peer}, the first {FIRST}": of[FIRST]}
        table.bars[peer] = median(of[effort.num_steps])
        if peer == MEASURED:
            table.numbers = [
                _number(title, "all steps", of[effort.num_steps], GOAL),
                _number(title, f"first {FIRST} steps", of[FIRST], FIRST_GOAL),
            ]
    return table


def _number(title: str, steps: str, found: list[float], goal: float) -> Number:
    return Number(
        quantity=f"share of ideal, {steps}, nothing known: {title}",
        goal=f">= {goal:g}",
        found=median_of(found),
        is_reached=median(found) >= goal,
    )
