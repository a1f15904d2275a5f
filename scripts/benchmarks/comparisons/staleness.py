"""What bounded staleness is worth: throughput under noise, behind slow links, and without either.

Devices are emulated, so that the cores of this machine are not the limit. The modes take turns, and
the noise of a repeat is the same for all of them: a ratio is taken within its repeat.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.comparisons.modes import (
    MODES,
    STALE,
    SYNCHRONOUS,
    WAIT_FREE,
    measure,
    ratio,
    table_of,
    take_turns,
)
from benchmarks.numbers import Number
from benchmarks.peers import Cluster, Run, execute, read_run, run_peer
from benchmarks.tables import Effort, Say, Table, median_of
from hetero_hvd.core.simulation.jitter import Jitter
from tests.kit.checkout import variables
from tests.kit.host_faults import slow_link
from tests.kit.virtual_cluster import VirtualCluster, missing_for_a_cluster, running_cluster

DEVICES = Cluster(
    seconds_per_sample=(0.00075, 0.00075, 0.00075, 0.00075 / 0.21),
    overhead_seconds=0.004,
    global_batch_size=640,
)
JITTER = Jitter(noise_ratio=0.2, spike_probability=0.02, spike_ratio=3.0)
NOISE_GOAL, NOISE_STRETCH, LINK_GOAL = 1.12, 1.18, 1.4
SHARE_GOALS = {STALE: 0.97, WAIT_FREE: 0.95}
"""Part of the devices' summed speeds."""

HOSTS, RATE = ("one", "two", "three"), "200mbit"
LINK_BATCH = 192
LINK_JOB: dict[str, Any] = {"width": 512, "depth": 3, "global_batch_size": LINK_BATCH}
LINK_SECONDS_PER_SAMPLE, LINK_OVERHEAD_SECONDS = 0.0002, 0.1
SETTLING_STEPS = 30
TIMEOUT_SECONDS = 240.0
PATIENT = {"HETERO_HVD_START_TIMEOUT_SECONDS": "180"}
"""A busy machine may start the workers slowly: that is not what is measured."""


def staleness(effort: Effort, say: Say) -> Iterator[Table]:
    """Throughput against the staleness bound: under noise, without, and behind a slow link."""
    yield _noisy(effort, say)
    yield _quiet(effort, say)
    if missing := missing_for_a_cluster():
        say(f"no virtual hosts, so no slow links: {missing}")
    else:
        yield _slow_link(effort, say)


def _noisy(effort: Effort, say: Say) -> Table:
    say("noise")
    found = take_turns(_emulated("oracle", asdict(JITTER)), effort, say)
    text = (
        f"{_about(effort)} The best split is held, so that the balancer's luck is not compared. "
        "Each step of each device takes a log-normal factor with a coefficient of variation of "
        f"{JITTER.noise_ratio:.0%}, and {JITTER.spike_ratio:g} times as long with "
        f"a probability of {JITTER.spike_probability:.0%}; that is {JITTER.mean:.3f} times as long "
        "in the mean, which the ideal takes into account. All modes see the same factors."
    )
    ideal = DEVICES.ideal_samples_per_second / JITTER.mean
    table = table_of("Staleness under noise", text, found, ideal)
    case = "CV 20 % and 2 % spikes of 3 x, balanced, 1:1:1:0.21"
    table.numbers.append(ratio(case, found, goal=NOISE_GOAL, stretch=NOISE_STRETCH))
    return table


def _quiet(effort: Effort, say: Say) -> Table:
    say("no noise")
    found = take_turns(_emulated("ours", {}), effort, say)
    ideal = DEVICES.ideal_samples_per_second
    text = f"{_about(effort)} The balancer is on; wait-free rounds need none."
    table = table_of("Staleness without noise", text, found, ideal)
    for mode, goal in SHARE_GOALS.items():
        shares = [run.samples_per_second / ideal for run in found[mode]]
        table.numbers.append(
            Number(
                quantity=f"share of ideal, end to end, {mode}: 1:1:1:0.21 without noise",
                goal=f">= {goal}",
                found=median_of(shares),
                is_reached=median(shares) >= goal,
            )
        )
    return table


def _about(effort: Effort) -> str:
    return (
        f"Four emulated devices at 1 : 1 : 1 : 0.21, batch {DEVICES.global_batch_size}, "
        f"{DEVICES.step_seconds('ours') * 1e3:.0f} ms of compute in a step of the best plan; "
        f"second half of {effort.num_steps} steps. `waits` and `hidden` are parts of "
        "the step in which a reduction is under way, with the worker waiting or computing. `lag`, "
        "for each worker, counts the steps under way that were reduced already when it had "
        "computed one: the bound on a worker that all others wait for."
    )


def _emulated(peer: str, noise: Mapping[str, float]) -> Callable[[str, int, int], Run]:
    def run_mode(mode: str, repeat: int, num_steps: int) -> Run:
        settings = {**noise, "noise_seed": repeat + 1} if noise else {}
        job = {"num_steps": num_steps, "steps_per_epoch": num_steps, "options": MODES[mode]}
        return run_peer(peer, replace(DEVICES, noise=settings), job, environment=PATIENT)

    return run_mode


def _slow_link(effort: Effort, say: Say) -> Table:
    """Communication and compute take the same time: the first run finds out how much that is.

    Raises:
        JobError: The links were not the limit.
    """
    say(f"links of {RATE}")
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        quotas = dict.fromkeys(HOSTS, 100)
        cluster = stack.enter_context(running_cluster(quotas, folder=Path(place)))
        for host in cluster.hosts.values():
            stack.enter_context(slow_link(host, rate=RATE))
        first = _on_hosts(cluster, SYNCHRONOUS, LINK_OVERHEAD_SECONDS, SETTLING_STEPS)
        wait_seconds = measure(first, bound=0).wait_seconds
        say(f"{wait_seconds * 1e3:.0f} ms of communication in a step")

        def run_mode(mode: str, _repeat: int, num_steps: int) -> Run:
            return _on_hosts(cluster, mode, wait_seconds, num_steps)

        found = take_turns(run_mode, effort, say)
    half = median(run.wait_ratio for run in found[SYNCHRONOUS])
    text = (
        f"{len(HOSTS)} virtual hosts whose links send {RATE} (tc tbf), a network of 0.5 million "
        f"parameters, emulated compute of as much time as the reduction takes: with S = 0 workers "
        f"wait for {half:.0%} of the step."
    )
    table = table_of("Staleness behind slow links", text, found)
    case = f"slow links, {half:.0%} of the step at S = 0 is communication"
    table.numbers.append(ratio(case, found, goal=LINK_GOAL))
    return table


def _on_hosts(cluster: VirtualCluster, mode: str, compute_seconds: float, num_steps: int) -> Run:
    """One run on virtual hosts whose compute takes about so long."""
    share = LINK_BATCH // len(HOSTS)
    emulate = {
        "seconds_per_sample": LINK_SECONDS_PER_SAMPLE,
        "overhead_seconds": max(0.0, compute_seconds - share * LINK_SECONDS_PER_SAMPLE),
    }
    hosts = cluster.hosts.values()
    nodes = [host.node(slots=1, devices=[], emulate=emulate) for host in hosts]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        steps = {"num_steps": num_steps, "steps_per_epoch": num_steps}
        job = LINK_JOB | steps | {"out": str(folder / "record.json"), "options": MODES[mode]}
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
        run = ["-m", "hetero_hvd", "run", "-f", str(folder / "nodes.yaml"), "--no-remember"]
        run += ["--output", str(folder / "out"), "--", "python", "-m"]
        run += ["benchmarks.workloads.training", "hetero", str(folder / "job.json")]
        execute([sys.executable, *run], folder, variables(**PATIENT), TIMEOUT_SECONDS)
        return read_run(folder)
