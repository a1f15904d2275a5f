"""What the reproducible mode costs: three models with real compute on two workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.local_workers import result_of
from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from hetero_hvd.core.numerics.cpu_capability import variables

DEFAULT, GRAINS = "default mode", "grains of 16"
FEW: dict[str, dict[str, Any]] = {
    DEFAULT: {"reproducible": False},
    GRAINS: {"reproducible": True, "grain": 16},
}
MANY = FEW | {
    "grains of 16, 32-bit sums": {"reproducible": True, "grain": 16, "sum_bits": 32},
    "grains of 32": {"reproducible": True, "grain": 32},
    "grains of 64": {"reproducible": True, "grain": 64},
    "grains of 128": {"reproducible": True, "grain": 128},
}
TASKS: dict[str, tuple[str, int, float]] = {
    "digits": ("digits CNN, batch 256", 256, 1.6),
    "gpt": ("GPT of 4 layers on 64 tokens, batch 128", 128, 1.05),
    "resnet": ("ResNet of 6 blocks on 32 x 32 pixels, batch 128", 128, 1.05),
}
"""Name to title, batch size, and the goal for grains of 16."""

CAPABILITY = "avx2"
NUM_STEPS = 5
"""Of an epoch."""

Found = dict[str, dict[str, list[float]]]


def reproducible(effort: Effort, say: Say) -> Iterator[Table]:
    """Step times of the mode against those without it, taking turns in the same processes."""
    num_rounds = {"digits": 3 * effort.repeats, "gpt": effort.repeats, "resnet": effort.repeats}
    say(f"{', '.join(f'{name}: {number} rounds' for name, number in num_rounds.items())}")
    few = dict.fromkeys(TASKS, FEW)
    found = _measure(num_rounds, few | {"digits": MANY})
    say(f"the same with {CAPABILITY}")
    held = _measure(num_rounds, few, variables(CAPABILITY))
    table = Table(
        title="The reproducible mode",
        text="Two workers with one thread each, real compute, even shares. Each round trains every "
        "variant for two epochs in the same processes; a ratio is taken within its round. The "
        f"ratios of rows with {CAPABILITY.upper()} are to the default mode with it, in the same "
        "processes; the mode has it where `hetero-hvd run` starts it, unless `cpu_capability` says "
        "otherwise. By that the goals are judged.",
        columns=("model", "variant", "milliseconds per step", "ratio", "range"),
    )
    for name, (title, _, goal) in TASKS.items():
        plain = found[name][DEFAULT]
        table.rows += [_row(title, variant, s, plain) for variant, s in found[name].items()]
        table.rows += [
            _row(title, f"{variant}, {CAPABILITY.upper()}", s, held[name][DEFAULT])
            for variant, s in held[name].items()
        ]
        table.numbers.append(_judged(title, goal, found[name], held[name]))
    yield table


def _judged(
    title: str, goal: float, found: dict[str, list[float]], held: dict[str, list[float]]
) -> Number:
    """The mode as `hetero-hvd run` starts it, beside the default mode with the same instructions.

    What the instruction set itself costs is told apart: a job that needs no equal machines can have
    all of them.
    """
    cost = median(_ratios(held[GRAINS], held[DEFAULT]))
    by_itself = median(_ratios(found[GRAINS], found[DEFAULT]))
    whole = median(held[GRAINS]) / median(found[DEFAULT])
    name = CAPABILITY.upper()
    return Number(
        quantity=f"step time of the reproducible mode, grains of 16, {title}",
        goal=f"<= {goal:g} x the default mode's, both with {name}",
        found=f"{cost:.2f} x; both with all instructions {by_itself:.2f} x, "
        f"{name} beside all instructions {whole:.2f} x",
        is_reached=cost <= goal,
    )


def _ratios(seconds: list[float], plain: list[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(seconds, plain, strict=True)]


def _row(title: str, variant: str, seconds: list[float], plain: list[float]) -> tuple[str, ...]:
    ratios = _ratios(seconds, plain)
    return (
        title,
        variant,
        f"{median(seconds) * 1e3:.2f}",
        f"{median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    )


def _measure(
    num_rounds: Mapping[str, int],
    variants: Mapping[str, dict[str, dict[str, Any]]],
    environment: Mapping[str, str] | None = None,
) -> Found:
    """Seconds per step of each variant of each task in each round."""
    job = {
        name: {
            "batch_size": TASKS[name][1],
            "num_rounds": number,
            "num_samples": NUM_STEPS * TASKS[name][1],
            "variants": variants[name],
        }
        for name, number in num_rounds.items()
    }
    return result_of("benchmarks.workloads.grains", job, Found, environment=environment)
