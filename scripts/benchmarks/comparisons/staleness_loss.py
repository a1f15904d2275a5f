"""What bounded staleness costs in accuracy: the loss after equal samples, over several seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.comparisons.modes import MODES, STALE, SYNCHRONOUS
from benchmarks.local_workers import NUM_WORKERS, result_of
from benchmarks.numbers import Number
from benchmarks.tables import FULL, Effort, Say, Table, median_of, spread

CHANCE = "S = 0, another order of the data"
WARMUP_STEPS, GOAL = 50, 0.01
TIMEOUT_SECONDS = 1800.0
JOBS: dict[str, dict[str, Any]] = {
    "digits CNN, AdamW": {"num_steps": 200, "batch_size": 64},
    "digits CNN, SGD with momentum": {"num_steps": 200, "batch_size": 64},
    "tiny GPT on Python's source, AdamW": {"num_steps": 250, "batch_size": 16},
}
SEEDS, QUICK_SEEDS, QUICK_STEPS = (0, 1, 2, 3, 4), (0, 1), 100


def staleness_loss(effort: Effort, say: Say) -> Iterator[Table]:
    """Loss at equal samples against the staleness bound."""
    is_full = effort.repeats >= FULL.repeats
    seeds = SEEDS if is_full else QUICK_SEEDS
    for task, size in JOBS.items():
        say(f"{task}: {len(seeds)} seeds of {len(MODES) + 1} variants")
        job = {"task": task, "seeds": seeds, "variants": variants(), **size}
        job |= {} if is_full else {"num_steps": QUICK_STEPS}
        workload, kind = "benchmarks.workloads.loss", list[dict[str, Any]]
        found = result_of(workload, job, kind, timeout_seconds=TIMEOUT_SECONDS)
        yield table_of(job, found)


def variants() -> dict[str, tuple[dict[str, Any], int]]:
    """Name to (options of the trainer, which order of the data); the second one shows chance."""
    modes = {
        name: options
        | ({"staleness_warmup_steps": WARMUP_STEPS} if "staleness_bound" in options else {})
        for name, options in MODES.items()
    }
    synchronous = modes.pop(SYNCHRONOUS)
    found = {SYNCHRONOUS: (synchronous, 0), CHANCE: (synchronous, 1)}
    return found | {name: (options, 0) for name, options in modes.items()}


def table_of(job: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> Table:
    """The variants of one task against the synchronous training of the same seed.

    Args:
        job: As `workloads.loss.Job`.
        found: A record of each training: variant, seed, held_out, training, ended.
    """
    runs: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in found:
        runs[record["variant"]].append(record)
    differences = {
        variant: {
            name: [run[name] / plain[name] - 1 for run, plain in _pairs(records, runs)]
            for name in ("held_out", "training")
        }
        for variant, records in runs.items()
    }
    samples = job["num_steps"] * job["batch_size"]
    cost = median(differences[STALE]["held_out"])
    return Table(
        title=f"Loss under staleness: {job['task']}",
        text=f"{NUM_WORKERS} workers with real compute, {samples} samples in {job['num_steps']} "
        f"steps, the first {WARMUP_STEPS} without staleness, {len(job['seeds'])} seeds; medians of "
        "the differences to S = 0 with the same seed, and their range. `training` is the loss of "
        f"the last tenth of the steps. `{CHANCE}` shows what chance does.",
        columns=("mode", "held-out loss", "against S = 0", "training, against S = 0", "fell back"),
        rows=[_row(variant, runs[variant], of) for variant, of in differences.items()],
        numbers=[
            Number(
                quantity=f"held-out loss at equal samples, staleness bound 1 / 0: {job['task']}",
                goal=f"at most {GOAL:.0%} more",
                found=f"{cost:+.1%} ({spread(differences[STALE]['held_out'], '{:+.1%}')})",
                is_reached=cost <= GOAL,
            )
        ],
        measured={variant: of["held_out"] for variant, of in differences.items()},
        raw=[dict(record) for record in found],
    )


def _row(
    variant: str, records: Sequence[Mapping[str, Any]], differences: Mapping[str, Sequence[float]]
) -> Sequence[str]:
    return (
        variant,
        f"{median(run['held_out'] for run in records):.4f}",
        *(median_of(of, "{:+.1%}") for of in differences.values()),
        f"{sum(bool(run['ended']) for run in records)} of {len(records)}",
    )


def _pairs(
    records: Sequence[Mapping[str, Any]], runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    plain = {record["seed"]: record for record in runs[SYNCHRONOUS]}
    return ((record, plain[record["seed"]]) for record in records)
