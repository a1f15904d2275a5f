"""`hetero-hvd simulate`: a described or recorded cluster under every policy, without a cluster."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np

from hetero_hvd.config.paths import some_path
from hetero_hvd.core.balance.policies.registry import RULES, Policy, make_policy
from hetero_hvd.core.balance.settings import DEFAULT_RULE, BalanceConfig
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.simulation.scenario import Blocks, Change, Scenario, Swing, TrueCurve
from hetero_hvd.core.simulation.simulation import Simulation
from hetero_hvd.errors import JobError
from hetero_hvd.measure.recording import read_recording
from hetero_hvd.measure.simulate_queue import add_queue_arguments, run_queue

NUM_SPIKE_FIGURES = 2
POLICIES = ("ours", "uniform", *(name for name in RULES if name != DEFAULT_RULE), "oracle")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a policy did, mean over the seeds.

    Attributes:
        policy: Its name.
        share_ratio: Time of the best plan without noise / time taken, over the whole run.
        steady_ratio: The same over the second half.
        steps_to_95_percent: Until a plan within 5 % of the best one was in force first; NaN: never
            in more than half of the runs.
        moves_per_100_steps: Plans with other shares.
        seconds: Duration of the run.
    """

    policy: str
    share_ratio: float
    steady_ratio: float
    steps_to_95_percent: float
    moves_per_100_steps: float
    seconds: float


def policy_named(name: str, scenario: Scenario) -> Policy | None:
    """A fresh policy; who needs speeds has those at equal shares, as measured beforehand."""
    if name == "oracle":
        return None
    if name == "ours":
        return make_policy(BalanceConfig())
    if name == "uniform":
        return make_policy(BalanceConfig(balance=False))
    hints = {}
    if RULES[name].goes_by_speeds:
        share = max(1, scenario.global_batch_size // len(scenario.curves))
        speeds = [1 / curve.step_seconds(share) for curve in scenario.curves]
        hints = {f"node{i}": speed / max(speeds) for i, speed in enumerate(speeds)}
    return make_policy(BalanceConfig(rule=name, relative_speeds=hints))


def compare(
    scenario: Scenario, policies: Sequence[str], *, num_steps: int, seeds: Sequence[int]
) -> list[Outcome]:
    """Run the scenario under each policy, with the same noise for all."""
    outcomes = []
    for name in policies:
        runs = [
            Simulation(scenario, policy_named(name, scenario), np.random.default_rng(seed))
            for seed in seeds
        ]
        for run in runs:
            run.run(num_steps)
        middle = num_steps // 2
        steps = float(np.median([run.steps_until(0.95) for run in runs]))
        outcomes.append(
            Outcome(
                policy=name,
                share_ratio=_mean([sum(r.best_seconds_at) / sum(r.seconds_at) for r in runs]),
                steady_ratio=_mean(
                    [sum(r.best_seconds_at[middle:]) / sum(r.seconds_at[middle:]) for r in runs]
                ),
                steps_to_95_percent=steps if steps < num_steps else math.nan,
                moves_per_100_steps=_mean([r.num_moves / num_steps * 100 for r in runs]),
                seconds=_mean([r.clock for r in runs]),
            )
        )
    return outcomes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    add = parser.add_argument
    add("--speeds", type=_floats, metavar="A,B,…", help="samples per second of each worker")
    add("--overheads", type=_floats, metavar="A,B,…", help="constant seconds per step of each")
    add("--links", type=_floats, metavar="A,B,…", help="seconds of a reduction on each link")
    add("--recording", type=some_path, metavar="FILE", help="timings.jsonl of a run, not speeds")
    add("--global-batch-size", type=int, default=512, metavar="N", help="samples (default 512)")
    add("--steps", type=int, default=1000, metavar="N", help="of each run (default 1000)")
    add("--noise", type=float, default=0.05, metavar="RATIO", help="coefficient of variation")
    add("--spikes", type=_floats, default=(0.0, 3.0), metavar="P,RATIO", help="slow single steps")
    add(
        "--change",
        type=_change,
        action="append",
        default=[],
        metavar="STEP:WORKER:RATIO[:OVER]",
        help="from that step on the worker's steps take RATIO times as long, reached evenly over "
        "OVER steps; inf: it is lost; 1: it is back or has recovered; may be repeated",
    )
    add(
        "--blocks",
        type=_ints,
        metavar="N,N,…",
        help="samples that each device computes as a whole: a started block takes as long as a "
        "full one; 1: it does not",
    )
    add(
        "--swing",
        type=_swing,
        action="append",
        default=[],
        metavar="WORKER:RATIO:STEPS",
        help="for every other STEPS steps the worker's take RATIO times as long; may be repeated",
    )
    add(
        "--coupling",
        type=float,
        default=0.0,
        metavar="RATIO",
        help="by how much a busy worker slows each other one, as if they shared a processor",
    )
    add("--seeds", type=int, default=5, metavar="N", help="runs per policy")
    add("--policies", default=",".join(POLICIES), metavar="A,B,…", help="default: all")
    add("--json", action="store_true", help="print JSON")
    add_queue_arguments(parser)


def run(arguments: argparse.Namespace) -> str:
    """What the command prints.

    Raises:
        UserError: A flag or the recording is wrong.
    """
    if arguments.queue is not None:
        return run_queue(arguments)
    names = arguments.policies.split(",")
    if unknown := [name for name in names if name not in POLICIES]:
        raise JobError(f"--policies: {unknown[0]!r}: must be of {', '.join(POLICIES)}")
    if arguments.steps < 1 or arguments.seeds < 1:
        raise JobError("--steps and --seeds must be at least 1")
    outcomes = compare(
        scenario_of(arguments), names, num_steps=arguments.steps, seeds=range(arguments.seeds)
    )
    if arguments.json:
        return json.dumps([asdict(outcome) for outcome in outcomes], indent=2)
    heads = f"{'policy':10} {'of ideal':>9} {'2nd half':>9} {'to 95 %':>8} "
    lines = [heads + f"{'moves/100':>10} {'seconds':>9}"]
    lines += [
        f"{o.policy:10} {o.share_ratio:9.4f} {o.steady_ratio:9.4f} {o.steps_to_95_percent:8.0f} "
        f"{o.moves_per_100_steps:10.2f} {o.seconds:9.2f}"
        for o in outcomes
    ]
    return "\n".join(lines)


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """The cluster that the flags describe.

    Raises:
        UserError: They contradict each other, or a number is out of range.
    """
    if arguments.recording is not None:
        return read_recording(arguments.recording)
    speeds = arguments.speeds or (1565.0, 1571.0, 1499.0, 326.0)
    overheads = arguments.overheads or (0.0,) * len(speeds)
    links = arguments.links or ()
    if len(overheads) != len(speeds) or (links and len(links) != len(speeds)):
        raise JobError(f"--overheads and --links need one number for each of {len(speeds)} workers")
    if (
        min(speeds) <= 0
        or min(overheads) < 0
        or not 0 <= arguments.noise < math.inf
        or len(arguments.spikes) != NUM_SPIKE_FIGURES
    ):
        raise JobError("--speeds must be > 0, --overheads and --noise >= 0, --spikes two numbers")
    if arguments.global_batch_size < len(speeds):
        raise JobError(f"--global-batch-size must be at least {len(speeds)}, one for each worker")
    for flag, found in (("--change", arguments.change), ("--swing", arguments.swing)):
        if any(event.worker >= len(speeds) for event in found):
            raise JobError(f"{flag}: workers are 0 to {len(speeds) - 1}")
    if not 0 <= arguments.coupling < math.inf:
        raise JobError("--coupling must be >= 0")
    blocks = arguments.blocks or (1,) * len(speeds)
    if len(blocks) != len(speeds) or min(blocks) < 1:
        raise JobError(f"--blocks needs one number >= 1 for each of {len(speeds)} workers")
    return Scenario(
        curves=tuple(map(_curve, speeds, overheads, blocks)),
        global_batch_size=arguments.global_batch_size,
        noise_ratio=arguments.noise,
        spike_probability=arguments.spikes[0],
        spike_ratio=arguments.spikes[1],
        link_seconds=links,
        changes=tuple(arguments.change),
        swings=tuple(arguments.swing),
        coupling_ratio=arguments.coupling,
    )


def _curve(speed: float, overhead_seconds: float, block_size: int) -> TrueCurve:
    if block_size == 1:
        return StepTimeModel(overhead_seconds=overhead_seconds, seconds_per_sample=1 / speed)
    block_seconds = block_size / speed
    return Blocks(
        block_size=block_size, block_seconds=block_seconds, overhead_seconds=overhead_seconds
    )


def _floats(text: str) -> tuple[float, ...]:
    with _expecting("numbers with commas between", text):
        found = tuple(float(part) for part in text.split(","))
        if not all(map(math.isfinite, found)):
            raise ValueError
        return found


def _ints(text: str) -> tuple[int, ...]:
    with _expecting("whole numbers with commas between", text):
        return tuple(int(part) for part in text.split(","))


def _swing(text: str) -> Swing:
    with _expecting("WORKER:RATIO:STEPS", text):
        worker, ratio, steps = text.split(":")
        if not 0 < float(ratio) < math.inf or int(worker) < 0 or int(steps) < 1:
            raise ValueError
        return Swing(worker=int(worker), time_ratio=float(ratio), num_steps=int(steps))


def _change(text: str) -> Change:
    with _expecting("STEP:WORKER:RATIO[:OVER]", text):
        step, worker, ratio, *over = text.split(":")
        if not float(ratio) > 0 or int(worker) < 0:  # infinite: it is lost
            raise ValueError
        return Change(
            step=int(step),
            worker=int(worker),
            time_ratio=float(ratio),
            over_steps=int("".join(over) or 0),
        )


@contextmanager
def _expecting(form: str, text: str) -> Iterator[None]:
    """Refuse what is not of that form, in words."""
    try:
        yield
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, must be {form}") from None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
