"""`hetero-hvd simulate --queue`: a trace of jobs under published policies and ours."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from hetero_hvd.config.paths import path_text, some_path
from hetero_hvd.core.queue.devices import QueueDevice
from hetero_hvd.core.queue.needs import memory_bytes
from hetero_hvd.core.queue.queue_settings import QueueSettings
from hetero_hvd.core.simulation.queues.generated_trace import (
    TraceRecipe,
    eight_devices,
    generated_trace,
)
from hetero_hvd.core.simulation.queues.queue_outcomes import (
    PolicyOutcome,
    mean_outcome,
    outcome_of,
)
from hetero_hvd.core.simulation.queues.queue_policies import QUEUE_POLICIES
from hetero_hvd.core.simulation.queues.queue_replay import QueueReplay
from hetero_hvd.core.simulation.queues.trace_job import TraceJob
from hetero_hvd.errors import JobError
from hetero_hvd.measure.queue_traces import read_trace
from hetero_hvd.run.reports.plots import draw_completions

GENERATED = "generated"
DEFAULT_POLICIES = "fifo,backfill,fair,gavel,sia,ours"
MAX_START_SECONDS = 3600.0
MAX_DEVICES = 4096
_DEVICE = re.compile(
    r"(?:(?P<pool>[\w.-]+)/)?(?P<kind>[\w.-]+)(?::(?P<memory>[\w.]+))?=(?P<count>\d{1,4})"
    r"(?:@(?P<speed>\d*\.?\d+))?"
)
_COLUMNS = (
    ("mean h", "mean_hours", 8, 2),
    ("median", "median_hours", 8, 2),
    ("p95", "p95_hours", 8, 2),
    ("makespan", "makespan_hours", 9, 1),
    ("wait h", "mean_wait_hours", 7, 2),
    ("longest", "longest_wait_hours", 8, 1),
    ("resizes", "resizes", 8, 0),
    ("idle", "idle_device_hours", 8, 1),
    ("joining", "joining_device_hours", 8, 2),
    ("paused", "paused_device_hours", 7, 2),
    ("fairness", "fairness", 9, 3),
)


def add_queue_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a replay, beside those of `simulate`."""
    add = parser.add_argument_group("a queue, instead of one job").add_argument
    add(
        "--queue",
        type=path_text,
        metavar="TRACE",
        help="replay a trace of jobs: a CSV file, Philly's cluster_job_log, Alibaba's list of "
        "pods of 2023, or 'generated'; see docs/reference/queue-trace.md",
    )
    add(
        "--policy",
        default=DEFAULT_POLICIES,
        metavar="A,B,…",
        help=f"of {', '.join(QUEUE_POLICIES)}, or all; default: {DEFAULT_POLICIES}",
    )
    add(
        "--devices",
        metavar="[POOL/]KIND[:MEMORY]=N[@SPEED],…",
        help="of the cluster, such as v100:16GiB=2@1,t4=4@0.3; default: 2 V100, 2 P100, 4 K80",
    )
    add(
        "--start-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="for so long a device that joins a job does nothing: imports, data; default 30",
    )
    add("--plot", type=some_path, metavar="FILE", help="draw how many jobs took how long")
    add(
        "--growth",
        type=float,
        default=2.0,
        metavar="X",
        help="jobs of Philly's and Alibaba's traces may grow to so many times what they asked for",
    )
    _add_generated_arguments(parser)


def _add_generated_arguments(parser: argparse.ArgumentParser) -> None:
    """What a generated trace is like."""
    add = parser.add_argument_group("a queue's generated trace").add_argument
    add("--jobs", type=int, default=150, metavar="N", help="default 150")
    add("--users", type=int, default=8, metavar="N", help="default 8")
    add(
        "--gap-hours",
        type=float,
        default=1.2,
        metavar="H",
        help="mean time between two jobs; default 1.2",
    )
    add(
        "--communication",
        action="store_true",
        help="jobs communicate as Gavel's authors measured them",
    )


def run_queue(arguments: argparse.Namespace) -> str:
    """What the command prints.

    Raises:
        UserError: A flag, the trace or the file of the plot is wrong.
    """
    _check(arguments)
    names = list(QUEUE_POLICIES) if arguments.policy == "all" else arguments.policy.split(",")
    if unknown := [name for name in names if name not in QUEUE_POLICIES]:
        known = ", ".join(QUEUE_POLICIES)
        raise JobError(f"--policy: found {unknown[0]!r}, must be of {known}, or all")
    devices = devices_of(arguments.devices) if arguments.devices else eight_devices()
    traces, num_left_out = _traces(arguments, devices)
    settings = QueueSettings(start_seconds=arguments.start_seconds)
    outcomes: dict[str, PolicyOutcome] = {}
    completions: dict[str, list[float]] = {}
    for name in names:
        replays = []
        for trace in traces:
            policy = QUEUE_POLICIES[name](devices, settings)
            replay = QueueReplay(trace, devices, policy, start_seconds=arguments.start_seconds)
            replay.run()
            replays.append(replay)
        outcomes[name] = mean_outcome([outcome_of(replay) for replay in replays])
        completions[name] = [
            job.completion_seconds / 3600.0 for replay in replays for job in replay.outcomes
        ]
    if arguments.plot:
        draw_completions(completions, arguments.plot)
    if arguments.json:
        rows = [{"policy": name, **asdict(outcome)} for name, outcome in outcomes.items()]
        return json.dumps(rows, indent=2)
    return _table(outcomes, traces, devices, num_left_out)


def devices_of(text: str) -> tuple[QueueDevice, ...]:
    """The cluster that `--devices` describes; eight devices of a kind are a node.

    Raises:
        UserError: It is of another form.
    """
    found: list[QueueDevice] = []
    for number, part in enumerate(text.split(",")):
        match = _DEVICE.fullmatch(part)
        if match is None or float(match["speed"] or 1) == 0:
            raise JobError(
                f"--devices: found {part!r}, must be [POOL/]KIND[:MEMORY]=N[@SPEED], such as "
                "v100:16GiB=2@1"
            )
        memory = memory_bytes(match["memory"], where="--devices") if match["memory"] else 0
        found += [
            QueueDevice(
                device=f"{match['kind']}-{number}-{index}",
                kind=match["kind"],
                node=f"node{number}-{index // 8}",
                pool=match["pool"] or "default",
                memory_bytes=memory,
                relative_speed=float(match["speed"] or 1),
            )
            for index in range(int(match["count"]))
        ]
    if not 1 <= len(found) <= MAX_DEVICES:
        raise JobError(f"--devices: found {len(found)} devices, must be 1 to {MAX_DEVICES}")
    return tuple(found)


def _check(arguments: argparse.Namespace) -> None:
    ranges = {
        "start-seconds": (arguments.start_seconds, 0.0, MAX_START_SECONDS),
        "jobs": (arguments.jobs, 1, 1_000_000),
        "users": (arguments.users, 1, 1_000_000),
        "gap-hours": (arguments.gap_hours, 1e-6, 1e6),
        "growth": (arguments.growth, 1.0, 1000.0),
        "seeds": (arguments.seeds, 1, 1000),
    }
    for name, (value, low, high) in ranges.items():
        if not low <= value <= high:
            raise JobError(f"--{name}: found {value:g}, must be from {low:g} to {high:g}")


def _traces(
    arguments: argparse.Namespace, devices: Sequence[QueueDevice]
) -> tuple[list[Sequence[TraceJob]], int]:
    """One trace of a file, or one for each seed; and how many jobs of the file were left out."""
    if arguments.queue != GENERATED:
        trace, num_left_out = read_trace(Path(arguments.queue), devices, growth=arguments.growth)
        return [trace], num_left_out
    recipe = TraceRecipe(
        num_jobs=arguments.jobs,
        num_users=arguments.users,
        mean_gap_seconds=arguments.gap_hours * 3600.0,
        has_communication=arguments.communication,
    )
    traces = [
        generated_trace(recipe, np.random.default_rng(seed)) for seed in range(arguments.seeds)
    ]
    if not all(job.may_use(devices[0]) for job in traces[0]):
        raise JobError("--devices: a generated trace's jobs run on v100, p100 and k80 only")
    return traces, 0


def _table(
    outcomes: dict[str, PolicyOutcome],
    traces: Sequence[Sequence[TraceJob]],
    devices: Sequence[QueueDevice],
    num_left_out: int,
) -> str:
    number = len(traces[0])
    left_out = f" ({num_left_out} that never ran or had no GPU left out)" if num_left_out else ""
    means = f", mean of {len(traces)} traces" if len(traces) > 1 else ""
    lines = [f"{number} jobs{left_out} on {len(devices)} devices{means}; hours, device-hours"]
    lines.append(f"{'policy':18}" + "".join(f" {head:>{w - 1}}" for head, _, w, _ in _COLUMNS))
    lines += [
        f"{name:18}" + "".join(f" {getattr(o, field):{w - 1}.{p}f}" for _, field, w, p in _COLUMNS)
        for name, o in outcomes.items()
    ]
    return "\n".join(lines)
