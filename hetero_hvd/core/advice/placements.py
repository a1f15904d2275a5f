"""Which nodes are worth their time, money and energy: other sets, by measured step times."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from statistics import median, pvariance

from hetero_hvd.core.advice.advice import GAIN_ERROR, WORTH_RATIO, Advice, Gain, Goal
from hetero_hvd.core.advice.race import student
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.cost.placement import (
    ANY_SHARE,
    DISTINCT_RATIO,
    ShareTime,
    flattest_line,
    is_varied,
    largest_shares,
    line_through,
    step_seconds,
)
from hetero_hvd.messages import WorkerId, WorkersJoined

MAX_NODES = 8
"""Of more than so many nodes not all sets are tried, but those without the worst ones of a goal."""

MAX_SETS = 32
"""Then so many sets at most."""

MAX_NAMED = 5
"""More nodes are told by their number; the command has all."""

SAME_RATIO = 0.02
"""Of sets whose gains differ by less the fastest is advised."""

MIN_INTERVALS = 3
"""Of less nothing can be said about how much a worker's time varies."""

MAX_BLOCKS = 20
"""A worker's intervals are left out in at most so many blocks: neighbours are alike."""

Figures = Mapping[Goal, float]


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """What a run has shown of its newest members.

    Attributes:
        joined: Who they are.
        times: What each worker needed for its shares, a row for each interval.
        exposed_seconds: Reduction that nobody could hide, per step; NaN: not measured.
        prices: Node to its price per hour, where it has one.
        watts: Node to its mean power, where that was measured.
        samples_per_second: Of all together, as they were lately; NaN: not measured.
        since: From when on a worker's times count, in words, where more was measured of it.
    """

    joined: WorkersJoined
    times: Mapping[WorkerId, Sequence[ShareTime]]
    exposed_seconds: float
    prices: Mapping[str, float]
    watts: Mapping[str, float]
    samples_per_second: float = math.nan
    since: Mapping[WorkerId, str] = field(default_factory=dict)

    @cached_property
    def curves(self) -> Mapping[WorkerId, StepTimeModel]:
        """The line through the times of each worker."""
        return {worker: line_through(rows) for worker, rows in self.times.items()}

    @cached_property
    def largest(self) -> Mapping[WorkerId, float]:
        """The largest share of each worker."""
        return largest_shares(self.times)

    @property
    def nodes(self) -> list[str]:
        """Those of the members, by name."""
        return sorted({worker.node for worker in self.joined.workers})

    @property
    def problem(self) -> str:
        """Why nothing can be said of other sets of nodes; empty: something can."""
        few = [
            f"{worker} {self.since.get(worker, '')}".rstrip()
            for worker in self.joined.workers
            if len(self.times.get(worker, ())) < MIN_INTERVALS
        ]
        if len(self.nodes) < 2:  # noqa: PLR2004 - there is nothing to leave out
            return "there is but one node"
        if few:
            return f"fewer than {MIN_INTERVALS} intervals were measured of {', '.join(few)}"
        if not math.isfinite(self.exposed_seconds):
            return "what a step waits for reductions was not measured"
        return ""

    def figures(
        self,
        nodes: Sequence[str],
        models: Mapping[WorkerId, StepTimeModel],
        reduction: float,
        largest: Mapping[WorkerId, float] = ANY_SHARE,
    ) -> Figures:
        """What these nodes would do with the best plan for them.

        Args:
            nodes: At least one of `nodes`.
            models: Curve of each worker.
            reduction: Of it nobody could hide so many seconds per step.
            largest: Far beyond which share curves are not believed, see `step_seconds`.

        Returns:
            Samples per second; price per hour and power for each of them, where each node has
            one. Zero samples, and infinite prices: they cannot hold the batch.
        """
        workers = [worker for worker in self.joined.workers if worker.node in nodes]
        seconds = step_seconds(self.joined, models, workers, largest)
        seconds += reduction if len(workers) > 1 else 0.0
        size = self.joined.global_batch_size
        found: dict[Goal, float] = {"speed": size / seconds if seconds > 0 else math.inf}
        each = {goal: rate * seconds / size for goal, rate in self.rates(nodes).items()}
        return found | (each if math.isfinite(seconds) else dict.fromkeys(each, math.inf))

    def rates(self, nodes: Sequence[str]) -> Figures:
        """What these nodes cost per hour, and their power, where each of them has one."""
        known: dict[Goal, Mapping[str, float]] = {"money": self.prices, "energy": self.watts}
        return {
            goal: math.fsum(per_node[node] for node in nodes)
            for goal, per_node in known.items()
            if all(node in per_node for node in nodes)
        }


def placements(
    run: MeasuredJob, *, worth_ratio: float = WORTH_RATIO, command: str = ""
) -> Iterator[Advice]:
    """For each goal the best set of nodes, where it is better than all together for certain.

    How certain: each block of intervals is left out once, and the curves and plans are made again
    (jackknife, Tukey 1958), which gives the standard deviation of the gain. At the lower end of its
    interval fewer workers wait as long for reductions as all do, at the upper end for none. Where a
    worker's shares tell nothing of what of its time does not depend on them, all of it does at the
    lower end, and none at the upper one (where shares vary by themselves all of it does); far
    beyond the largest share that was measured it does so at the lower end whatever they tell. All
    together are as fast as was measured, or as the curves say, whichever is worse or better.

    Args:
        run: What was measured; `problem` must be empty.
        worth_ratio: The least gain.
        command: How to leave a node out; `{node}` is its name.
    """
    models, largest = run.curves, run.largest
    before = run.figures(run.nodes, models, run.exposed_seconds, largest)
    told: set[tuple[str, ...]] = set()
    for goal in before:
        sets = {
            nodes: run.figures(nodes, models, run.exposed_seconds, largest)
            for nodes in sets_of(run, goal, models)
        }
        gained = {nodes: _gain(goal, before, found[goal]) for nodes, found in sets.items()}
        good = [each for each in sets if gained[each] >= max(gained.values()) - SAME_RATIO]
        nodes = max(good, key=lambda each: sets[each]["speed"])
        if nodes in told or gained[nodes] < worth_ratio:
            continue
        gains = _gains(run, nodes)
        if gains[goal].low < worth_ratio:
            continue
        told.add(nodes)
        order = [gains[goal], *(each for each in gains.values() if each.goal != goal)]
        yield _advice(run, nodes, order, command)


def sets_of(
    run: MeasuredJob,
    goal: Goal,
    models: Mapping[WorkerId, StepTimeModel],
    max_nodes: int = MAX_NODES,
) -> Iterator[tuple[str, ...]]:
    """All sets that lack something; of more than so many nodes those without the worst ones."""
    if len(run.nodes) <= max_nodes:
        for size in range(1, len(run.nodes)):
            yield from combinations(run.nodes, size)
        return
    speeds = dict.fromkeys(run.nodes, 0.0)
    for worker, model in models.items():  # at its own shares: an overhead is of one step, not all
        share = median(row.share for row in run.times[worker])
        seconds = model.overhead_seconds + model.seconds_per_sample * share
        speeds[worker.node] += share / seconds
    price = {"speed": dict.fromkeys(run.nodes, 1.0), "money": run.prices, "energy": run.watts}[goal]
    order = sorted(run.nodes, key=lambda node: price[node] / speeds[node])
    for size in range(1, len(order), math.ceil(len(order) / MAX_SETS)):
        yield tuple(sorted(order[: len(order) - size]))


def _gain(goal: Goal, before: Figures, after: float) -> float:
    """See `Gain`."""
    if goal == "speed":
        return after / before[goal] - 1.0
    return 1.0 - after / before[goal] if before[goal] > 0 else -math.inf


def _gains(run: MeasuredJob, nodes: Sequence[str]) -> dict[Goal, Gain]:
    """How much better a set is than all, as an interval; see `placements`.

    Errors are of how many times as fast it is, as a logarithm; what it costs follows from that, so
    that no interval says what another one denies, and nobody saves more than all.
    """

    def speeds(models: Mapping[WorkerId, StepTimeModel]) -> tuple[float, float]:
        found = (
            run.figures(each, models, run.exposed_seconds, run.largest)
            for each in (nodes, run.nodes)
        )
        after, before = (figures["speed"] for figures in found)
        return after, before

    parts = [speeds(models) for models in _without_a_block(run.times)]
    freedom = len(parts) - 1
    error = math.sqrt(freedom * pvariance([math.log(after / before) for after, before in parts]))
    width = student(1.0 - GAIN_ERROR / 2, freedom) * error
    least, before = speeds(run.curves)
    line = line_through if run.joined.shares_vary else flattest_line
    flattest = {worker: line(rows) for worker, rows in run.times.items()}
    most = run.figures(nodes, flattest, 0.0)["speed"]
    # All are as fast as was measured, or as the curves say.
    measured = run.samples_per_second if 0 < run.samples_per_second < math.inf else before
    low = min(least, most) / max(before, measured) * math.exp(-width)
    high = max(least, most) / min(before, measured) * math.exp(width)
    gains: dict[Goal, Gain] = {"speed": Gain(goal="speed", low=low - 1.0, high=high - 1.0)}
    rates = run.rates(nodes)
    for goal, rate in run.rates(run.nodes).items():
        if rate > 0:
            part = rates[goal] / rate
            gains[goal] = Gain(goal=goal, low=1.0 - part / low, high=1.0 - part / high)
    return gains


def _without_a_block(
    times: Mapping[WorkerId, Sequence[ShareTime]],
) -> Iterator[dict[WorkerId, StepTimeModel]]:
    """Curves from all but a part of neighbouring intervals, the same of all workers, each once."""
    num_blocks = min(MAX_BLOCKS, *map(len, times.values()))
    for block in range(num_blocks):
        models = {}
        for worker, rows in times.items():
            begin, end = (len(rows) * number // num_blocks for number in (block, block + 1))
            models[worker] = line_through([*rows[:begin], *rows[end:]])
        yield models


def _advice(run: MeasuredJob, nodes: Sequence[str], gains: Sequence[Gain], command: str) -> Advice:
    """To train with these nodes alone; what is gained most stands first."""
    left_out = [node for node in run.nodes if node not in nodes]
    others = len(left_out) - MAX_NAMED
    named = left_out if others <= 0 else [*left_out[:MAX_NAMED], f"{others} others"]
    staying = [worker for worker in run.joined.workers if worker.node in nodes]
    evidence = [
        f"{worker}: {curve.overhead_seconds * 1e3:.2f} ms a step and "
        f"{curve.seconds_per_sample * 1e3:.4f} ms a sample, by {len(run.times[worker])} intervals"
        for worker, curve in run.curves.items()
    ]
    unknown = []
    wait = f"{run.exposed_seconds * 1e3:.1f} ms of a step are waiting for reductions"
    if len(staying) > 1:
        unknown.append("how long fewer workers wait for reductions: at most as long, at least not")
    else:
        wait += ", and one worker has none"
    evidence.append(wait)
    if math.isfinite(run.samples_per_second):
        evidence.append(f"all together have trained {run.samples_per_second:.0f} samples/s")
    goal = gains[0].goal
    if goal == "money":
        evidence.append(f"prices per hour: {_listed(run.prices, run.nodes)}")
    if goal == "energy":
        watts = {node: round(value) for node, value in run.watts.items()}
        evidence.append(f"mean power in W: {_listed(watts, run.nodes)}")
        unknown.append("what a node that is left out draws meanwhile")
    if grown := [str(worker) for worker in staying if _is_beyond(run, worker, staying)]:
        unknown.append(f"{', '.join(grown)} would have larger shares than were measured")
    steady = [str(each) for each in staying if not is_varied(run.times[each])]
    if steady and not run.joined.shares_vary:
        unknown.append(
            f"how much longer a step of {', '.join(steady)} takes with more samples: at most in "
            "proportion, at least not"
        )
    return Advice(
        kind="placement",
        id=f"placement:{'+'.join(left_out)}",
        what=f"leave {' and '.join(named)} out",
        evidence=tuple(evidence),
        gains=tuple(gains),
        command=" && ".join(command.format(node=shlex.quote(node)) for node in left_out),
        unknown=tuple(unknown),
    )


def _is_beyond(run: MeasuredJob, worker: WorkerId, staying: Sequence[WorkerId]) -> bool:
    """Whether its part of the batch, in proportion to speeds, is more than was measured."""
    rates = {each: run.times[each][-1].share / run.times[each][-1].busy_seconds for each in staying}
    share = run.joined.global_batch_size * rates[worker] / math.fsum(rates.values())
    return share > (1 + DISTINCT_RATIO) * max(row.share for row in run.times[worker])


def _listed(values: Mapping[str, float], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {values[name]:g}" for name in names)
