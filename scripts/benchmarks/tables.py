"""What is computed from runs: the report's tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean, median, pstdev
from typing import Any

from benchmarks.numbers import Number
from benchmarks.peers import EVEN, Cluster, Run, run_peer
from hetero_hvd.errors import JobError
from tests.kit.fault_job import in_words

TARGET_ACCURACY, EPOCH_STEPS = 0.75, 40


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure.

    Attributes:
        repeats: Of each run; the peers take turns.
        num_steps: Of a run.
        num_even_steps: Of a run with even shares, whose steps take longer.
        num_seeds: Of each simulation.
        done: Titles of tables that need not be measured; heeded by parts of many hours.
    """

    repeats: int = 5
    num_steps: int = 150
    num_even_steps: int = 50
    num_seeds: int = 20
    done: frozenset[str] = frozenset()


QUICK = Effort(repeats=1, num_steps=70, num_even_steps=14, num_seeds=20)
FULL = Effort()


@dataclass(kw_only=True)
class Table:
    """A table of the report.

    Attributes:
        title: Its heading.
        text: What was measured, in a paragraph.
        columns: Heads.
        rows: Cells, as text.
        bars: Label to ratio, for the plot; empty for none.
        numbers: Rows of "numbers to beat" that it answers.
        measured: Label of a row to one value for each repeat: what its median is taken of.
        raw: What the cells were computed from.
        is_whole: Whether all of its runs went well.
    """

    title: str
    text: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bars: dict[str, float] = field(default_factory=dict)
    numbers: list[Number] = field(default_factory=list)
    measured: dict[str, list[float]] = field(default_factory=dict)
    raw: list[dict[str, Any]] = field(default_factory=list)
    is_whole: bool = True

    def add_seconds(
        self, what: str, seconds: Sequence[float], *, goal_seconds: float | None, quantity: str
    ) -> None:
        """A row: what, median and range, all of them.

        Args:
            what: The first cell.
            seconds: One of each repeat.
            goal_seconds: That the median is not to exceed; None: there is none.
            quantity: Of the "number to beat", where there is a goal.
        """
        words = in_words(seconds)
        self.rows.append((what, words, ", ".join(f"{second:.2f}" for second in seconds)))
        if goal_seconds is not None:
            self.numbers.append(
                Number(
                    quantity=quantity,
                    goal=f"median <= {goal_seconds:g} s",
                    found=words,
                    is_reached=median(seconds) <= goal_seconds,
                )
            )


RACE_COLUMNS = (
    "peer",
    "share of ideal, end to end, second half",
    "ours / peer",
    "from the first step on",
    "load variance",
    "seconds per epoch",
    "cost per epoch",
    "steps to target",
    "seconds to target",
)

Say = Callable[[str], None]


def take_turns(
    cluster: Cluster, peers: Sequence[str], effort: Effort, say: Say
) -> list[dict[str, Run]]:
    """Every peer once, then every peer again: the runs of each turn that did not fail."""

    def run(peer: str, num_steps: int) -> Run:
        return run_peer(peer, cluster, {"num_steps": num_steps})

    share = partial(share_of_ideal, cluster)
    return [take_turn(n, peers, effort, say, run, share) for n in range(effort.repeats)]


def take_turn(  # noqa: PLR0917 - what, how much, and how
    repeat: int,
    peers: Sequence[str],
    effort: Effort,
    say: Say,
    run: Callable[[str, int], Run],
    share_of: Callable[[Run], float],
) -> dict[str, Run]:
    """Every peer once; one that fails is told and left out.

    Args:
        repeat: Number of the turn, from 0.
        peers: In their order.
        effort: How many steps each takes, and of how many turns this is one.
        say: For progress.
        run: Called with a peer and how many steps to take.
        share_of: What part of the ideal a run reached.
    """
    runs: dict[str, Run] = {}
    for peer in peers:
        where = f"{peer} {repeat + 1} of {effort.repeats}"
        try:
            runs[peer] = run(peer, effort.num_even_steps if peer in EVEN else effort.num_steps)
        except JobError as error:  # a peer's accident must not cost the night's measurement
            say(f"{where}: failed, {error}")
            continue
        say(f"{where}: {share_of(runs[peer]):.3f} of the ideal")
    return runs


def shares_of(cluster: Cluster, turns: Sequence[Mapping[str, Run]]) -> list[dict[str, float]]:
    """Of each turn, what part of the ideal each peer reached in the second half."""
    return [{peer: share_of_ideal(cluster, run) for peer, run in turn.items()} for turn in turns]


def gains_of(turns: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Ours / each other peer, taken within each turn in which both ran.

    A turn's runs are minutes apart: what a shared machine does from hour to hour is in both.

    Args:
        turns: Peer to share of the ideal.

    Returns:
        Peer to one ratio for each turn; peers with none are left out.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for turn in turns:
        for peer, share in turn.items():
            if peer != "ours" and "ours" in turn:
                found[peer].append(turn["ours"] / share)
    return dict(found)


def add_shares(table: Table, turns: Sequence[Mapping[str, float]]) -> dict[str, list[str]]:
    """Keep every peer's shares and gains in a table.

    Returns:
        Peer to the cells for its share and for ours / peer: medians with their ranges.
    """
    gains, cells = gains_of(turns), {}
    for peer in dict.fromkeys(peer for turn in turns for peer in turn):
        shares = [turn[peer] for turn in turns if peer in turn]
        table.bars[peer] = median(shares)
        table.measured[peer] = shares
        cells[peer] = [median_of(shares), ""]
        if peer in gains:
            table.measured[f"ours / {peer}"] = gains[peer]
            cells[peer][1] = median_of(gains[peer])
    return cells


def ahead(what: str, turns: Sequence[Mapping[str, float]]) -> Number:
    """The row of "numbers to beat" for ours against the closest other peer, oracle apart."""
    gains = [found for peer, found in gains_of(turns).items() if peer != "oracle"]
    closest = min(gains, key=median, default=[])
    return Number(
        quantity=f"ours / best other peer, second half: {what}",
        goal=">= 1",
        found=median_of(closest) if closest else "no peer ran",
        is_reached=bool(closest) and median(closest) >= 1,
    )


def table_of(title: str, cluster: Cluster, turns: Sequence[Mapping[str, Run]]) -> Table:
    """What the runs of each peer say: speed, variance, cost and time to the target."""
    table = Table(
        title=title,
        text=f"Batch {cluster.global_batch_size}, {cluster.step_seconds('oracle') * 1e3:.0f} ms of "
        f"compute in a step of the best plan ({', '.join(map(str, cluster.best_shares))} samples); "
        f"ideal {cluster.ideal_samples_per_second:.0f} samples/s. An epoch has "
        f"{EPOCH_STEPS * cluster.global_batch_size} samples; the target is a held-out accuracy "
        f"of {TARGET_ACCURACY:.0%}; "
        f"prices {', '.join(f'{p:g}' for p in cluster.price_per_hour)} an hour. "
        "Ratios are taken within a turn.",
        columns=RACE_COLUMNS,
    )
    for peer, cells in add_shares(table, shares_of(cluster, turns)).items():
        found = [turn[peer] for turn in turns if peer in turn]
        table.rows.append((peer, *cells, *_more_cells(cluster, found)))
        table.raw += [
            {"peer": peer, "step_seconds": run.step_seconds, "losses": run.losses[-1:]}
            for run in found
        ]
    return table


def _more_cells(cluster: Cluster, runs: Sequence[Run]) -> Iterator[str]:
    yield f"{median(_whole_share(cluster, run) for run in runs):.3f}"
    yield load_variance(runs)
    epoch_seconds = EPOCH_STEPS * median(second_half_seconds(run) for run in runs)
    yield f"{epoch_seconds:.2f}"
    yield f"{epoch_seconds / 3600 * sum(cluster.price_per_hour):.5f}"
    targets = [target for run in runs if (target := _to_target(run))]
    yield f"{median(steps for steps, _ in targets):.0f}" if targets else "not in time"
    yield f"{median(seconds for _, seconds in targets):.1f}" if targets else "not in time"


def second_half_seconds(run: Run) -> float:
    """Mean step time."""
    return mean(run.step_seconds[len(run.step_seconds) // 2 :])


def share_of_ideal(cluster: Cluster, run: Run) -> float:
    """Speed of the second half of a run / summed speed of the devices."""
    return cluster.global_batch_size / second_half_seconds(run) / cluster.ideal_samples_per_second


def _whole_share(cluster: Cluster, run: Run) -> float:
    samples = cluster.global_batch_size * len(run.step_seconds)
    return samples / sum(run.step_seconds) / cluster.ideal_samples_per_second


def compute_share(cluster: Cluster, run: Run) -> float:
    """As if nothing but the slowest device's own work took time."""
    slowest = [max(table) for table in run.tables[len(run.tables) // 2 :]]
    return cluster.global_batch_size / mean(slowest) / cluster.ideal_samples_per_second


def load_variance(runs: Sequence[Run]) -> str:
    """Variation of the devices' busy times in the second half: standard deviation / mean."""
    tables = [table for run in runs for table in run.tables[len(run.tables) // 2 :]]
    return f"{mean(pstdev(t) / mean(t) for t in tables):.1%}" if tables else ""


def _to_target(run: Run) -> tuple[int, float] | None:
    """Steps and seconds to the target accuracy."""
    for index, accuracy in enumerate(run.accuracies, 1):
        if accuracy >= TARGET_ACCURACY:
            return 10 * index, sum(run.step_seconds[: 10 * index])
    return None


def spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """The range of some values, in words."""
    return f"{form.format(min(values))} to {form.format(max(values))}"


def median_of(values: Sequence[float], form: str = "{:.3f}") -> str:
    """The median of some values with their range, in words."""
    return f"{form.format(median(values))} ({spread(values, form)})"
