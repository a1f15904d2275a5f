"""What the reproducible mode costs: the digits CNN with real compute on two workers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.local_workers import result_of
from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table

VARIANTS: dict[str, dict[str, Any]] = {
    "default mode": {"reproducible": False},
    "grains of 16": {"reproducible": True, "grain": 16},
    "grains of 16, 32-bit sums": {"reproducible": True, "grain": 16, "sum_bits": 32},
    "grains of 32": {"reproducible": True, "grain": 32},
    "grains of 64": {"reproducible": True, "grain": 64},
    "grains of 128": {"reproducible": True, "grain": 128},
}
BATCH, GOAL = 256, 1.15
SIZES = (144, 16, 4608, 32, 32768, 64, 640, 10)
"""Elements of the model's parameters."""


def reproducible(effort: Effort, say: Say) -> Iterator[Table]:
    """Step times of the mode against those without it, taking turns in the same processes."""
    say(f"{3 * effort.repeats} rounds of {len(VARIANTS)} variants")
    found = _measure(3 * effort.repeats)
    plain = found["default mode"]
    ratios = {
        name: [mine / theirs for mine, theirs in zip(seconds, plain, strict=True)]
        for name, seconds in found.items()
    }
    cost = median(ratios["grains of 16"])
    yield Table(
        title="The reproducible mode",
        text=f"Digits CNN, batch {BATCH} on two workers with one thread each, real compute, even "
        "shares. Each round trains every variant for two epochs in the same processes; a ratio "
        "is taken within its round. Bytes are what each worker reduces in a step.",
        columns=("variant", "milliseconds per step", "ratio", "range", "bytes"),
        rows=[
            (
                name,
                f"{median(seconds) * 1e3:.2f}",
                f"{median(ratios[name]):.2f}",
                f"{min(ratios[name]):.2f} to {max(ratios[name]):.2f}",
                f"{_num_bytes(VARIANTS[name]):,}",
            )
            for name, seconds in found.items()
        ],
        numbers=[
            Number(
                quantity="step time of the reproducible mode, grains of 16, digits CNN",
                goal=f"<= {GOAL:g} x the default mode's",
                found=f"{cost:.2f} x",
                is_reached=cost <= GOAL,
            )
        ],
    )


def _measure(num_rounds: int) -> dict[str, list[float]]:
    """Seconds per step of each variant in each round."""
    job = {"variants": VARIANTS, "batch_size": BATCH, "num_rounds": num_rounds}
    return result_of("benchmarks.workloads.grains", job, dict[str, list[float]])


def _num_bytes(options: dict[str, Any]) -> int:
    if not options["reproducible"]:
        return 4 * (sum(SIZES) + len(SIZES))
    width: int = options.get("sum_bits", 64) // 8
    return sum(-(-size // 64) * 64 for size in SIZES) * width
