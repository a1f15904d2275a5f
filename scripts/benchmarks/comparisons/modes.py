"""Ways to take steps, compared in turns: throughput, what is waited for, and what is hidden."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from benchmarks.numbers import Number
from benchmarks.peers import Run
from benchmarks.tables import Effort, Say, Table, median_of, spread
from hetero_hvd.errors import JobError

WARMUP_STEPS = 10
MODES: dict[str, dict[str, Any]] = {
    f"S = {bound}": {"staleness_bound": bound, "staleness_warmup_steps": WARMUP_STEPS}
    for bound in (0, 1, 2, 4)
}
MODES["wait-free"] = {"wait_free": True}
"""Options of the trainer for each way to take steps; the first is what the others compare with."""

SYNCHRONOUS, STALE, WAIT_FREE = "S = 0", "S = 1", "wait-free"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The second half of a run.

    Attributes:
        samples_per_second: Of all workers together.
        wait_seconds: Time in which a worker waits for a reduction in a step; mean of the workers.
        wait_ratio: That as part of the step.
        hidden_ratio: Part of the step in which a reduction is under way while it does not wait.
        staleness_steps: Steps under way after a step.
        lag_steps: Steps under way that were reduced already when a worker had computed a step: 0 on
            the worker that is furthest ahead; each worker's.
    """

    samples_per_second: float
    wait_seconds: float
    wait_ratio: float
    hidden_ratio: float
    staleness_steps: float
    lag_steps: tuple[float, ...]


def measure(run: Run, *, bound: int) -> Measured:
    """What the tables of a run's second half say.

    Args:
        run: Its samples are counted, so the batch need not be the same in every step.
        bound: Its staleness bound.

    Raises:
        JobError: There are no tables, or the run was synchronous though it should not be.
    """
    late = [
        table
        for table, step in zip(run.timings, run.table_steps, strict=True)
        if step >= len(run.step_seconds) // 2 and all(row["num_steps"] for row in table)
    ]
    if not late:
        raise JobError("no timings in the second half of the run")
    rows = [row for table in late for row in table]
    step_seconds = _mean_of(rows, "step_seconds")
    wait_seconds = _mean_of(rows, "comm_wait_seconds")
    staleness = _mean_of(rows, "staleness_steps")
    if staleness < 0.9 * bound:
        raise JobError(f"{staleness:.2f} steps under way instead of {bound}: did the loss diverge?")
    return Measured(
        samples_per_second=_mean_of(rows, "local_batch_size") * len(late[0]) / step_seconds,
        wait_seconds=wait_seconds,
        wait_ratio=wait_seconds / step_seconds,
        hidden_ratio=_mean_of(rows, "overlapped_comm_seconds") / step_seconds,
        staleness_steps=staleness,
        lag_steps=tuple(_mean_of(of, "lag_steps") for of in zip(*late, strict=True)),
    )


def _mean_of(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """Mean over the steps; what was not measured is 0."""
    total = float(sum(row["num_steps"] * (row[name] or 0.0) for row in rows))
    num_steps: int = sum(row["num_steps"] for row in rows)
    return total / num_steps


def take_turns(
    run_mode: Callable[[str, int, int], Run], effort: Effort, say: Say
) -> dict[str, list[Measured]]:
    """Every mode once, then every mode again.

    Args:
        run_mode: Called with a mode, the number of the repeat, and how many steps to take.
        effort: How much.
        say: For progress.

    Returns:
        Mode to what was measured; a repeat in which a run failed is left out for all modes.

    Raises:
        JobError: No repeat was complete.
    """
    found: dict[str, list[Measured]] = defaultdict(list)
    for repeat in range(effort.repeats):
        where = f"{repeat + 1} of {effort.repeats}"
        measured: dict[str, Measured] = {}
        try:
            for mode, options in MODES.items():
                run = run_mode(mode, repeat, effort.num_steps)
                measured[mode] = measure(run, bound=options.get("staleness_bound", 0))
                say(f"{mode}, {where}: {measured[mode].samples_per_second:.0f} samples/s")
        except JobError as error:  # an accident must not cost the night's measurement
            say(f"{where}: failed, {error}")
            continue
        for mode, each in measured.items():
            found[mode].append(each)
    if not found:
        raise JobError("no repeat was complete")
    return found


def table_of(
    title: str, text: str, found: Mapping[str, Sequence[Measured]], ideal: float = 0.0
) -> Table:
    """The modes of one case.

    Args:
        title: Heading.
        text: What was measured.
        found: Mode to repeats.
        ideal: Summed speed of the devices alone, samples/s; 0: it is not known.
    """
    columns = ("mode", "throughput / S = 0", "waits", "hidden", "steps under way", "lag")
    table = Table(
        title=title, text=text, columns=(*columns, *(["share of ideal"] if ideal else []))
    )
    for mode, runs in found.items():
        ratios = ratios_of(found, mode)
        cells = [
            mode,
            median_of(ratios),
            f"{median(run.wait_ratio for run in runs):.1%}",
            f"{median(run.hidden_ratio for run in runs):.1%}",
            f"{mean(run.staleness_steps for run in runs):.2f}",
            ", ".join(
                f"{mean(lags):.2f}" for lags in zip(*(r.lag_steps for r in runs), strict=True)
            ),
        ]
        shares = [run.samples_per_second / ideal for run in runs] if ideal else []
        table.rows.append(cells + [median_of(shares) for _ in shares[:1]])
        table.measured[mode] = ratios
        table.raw += [{"mode": mode, "samples_per_second": run.samples_per_second} for run in runs]
    return table


def ratios_of(found: Mapping[str, Sequence[Measured]], mode: str) -> list[float]:
    """Throughput against the synchronous run of the same repeat."""
    pairs = zip(found[mode], found[SYNCHRONOUS], strict=True)
    return [run.samples_per_second / other.samples_per_second for run, other in pairs]


def ratio(
    case: str, found: Mapping[str, Sequence[Measured]], *, goal: float, stretch: float | None = None
) -> Number:
    """The row of "numbers to beat" for bound 1 against none."""
    ratios = ratios_of(found, STALE)
    return Number(
        quantity=f"throughput of staleness bound 1 / 0: {case}",
        goal=f">= {goal} x" + (f", stretch {stretch} x" if stretch else ""),
        found=f"{median(ratios):.3f} x ({spread(ratios)})",
        is_reached=median(ratios) >= goal,
    )
