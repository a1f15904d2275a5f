"""Steps bound by communication on slow links: what each option saves, and what it does to the loss.

On one machine's loopback the network is faster than anything that could be saved; so here three
virtual hosts send through links of a given rate.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.comparisons.quota import Entry, Race
from benchmarks.peers import Run
from benchmarks.tables import Effort, Say, Table, second_half_seconds, spread
from hetero_hvd.errors import JobError
from tests.kit.host_faults import slow_link
from tests.kit.virtual_cluster import missing_for_a_cluster, running_cluster

HOSTS = {"one": 40, "two": 40, "three": 40}
"""Percent of one core."""

RATE, BATCH, NUM_BATCHES, ACCUMULATED = "100mbit", 192, 48, 4
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "fp16": {"compression": "fp16"},
    "fp16 with error feedback": {"compression": "fp16-feedback"},
    "512 KiB buckets": {"bucket_bytes": 2**19},
    f"accumulation over {ACCUMULATED} batches": {"accumulation_steps": ACCUMULATED},
}


def links(effort: Effort, say: Say) -> Iterator[Table]:
    """Steps bound by slow links: what each option saves."""
    if missing := missing_for_a_cluster():
        raise JobError(f"no virtual hosts: {missing}")
    runs: dict[str, list[Run]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(HOSTS, folder=Path(place)))
        race = Race(cluster, HOSTS)
        for host in cluster.hosts.values():
            stack.enter_context(slow_link(host, rate=RATE))
        for repeat in range(effort.repeats):
            for name, options in VARIANTS.items():
                num_steps = NUM_BATCHES // options.get("accumulation_steps", 1)
                entry = Entry(
                    peer="uniform",
                    num_steps=num_steps,
                    batch=BATCH,
                    names=tuple(HOSTS),
                    options=options,
                )
                (run,) = race.run([entry])
                runs[name].append(run)
                seconds = second_half_seconds(run)
                say(f"{name} {repeat + 1} of {effort.repeats}: {seconds * 1e3:.0f} ms a step")
    yield _table(runs)


def _table(runs: dict[str, list[Run]]) -> Table:
    table = Table(
        title="Steps bound by slow links",
        text=f"Half a million parameters, {BATCH // len(HOSTS)} samples on each of three hosts in "
        f"network namespaces, each of which sends at {RATE[:-4]} Mbit/s at most. Seconds per "
        f"{BATCH} samples; the loss is that of the last sixth of {NUM_BATCHES} such batches.",
        columns=("option", "seconds per batch", "range", "speed", "loss"),
    )
    plain = median(second_half_seconds(run) for run in runs["as it is"])
    for name, found in runs.items():
        batches = VARIANTS[name].get("accumulation_steps", 1)
        seconds = [second_half_seconds(run) / batches for run in found]
        last = NUM_BATCHES // 6 // batches
        losses = [mean(run.losses[-last:]) for run in found]
        speed = f"{plain / median(seconds):.2f} x"
        table.rows.append(
            (name, f"{median(seconds):.3f}", spread(seconds), speed, f"{median(losses):.3f}")
        )
        table.measured[name] = seconds
    return table
