"""What series tell of machines: periods, kinds of jobs and forecasts, beside what is known."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.numbers import Number
from benchmarks.tables import Effort, Say, Table
from hetero_hvd.core.advice.advice import Worth
from hetero_hvd.core.patterns.forecast import NUM_BINS, find_forecast
from hetero_hvd.core.patterns.job_type import job_type
from hetero_hvd.core.patterns.period import find_period
from hetero_hvd.probes.sampling.node_sampler import NodeSampler
from hetero_hvd.run.recordings.machine_advice import of_samples
from tests.kit.machine_load import KINDS, samples

EVERY_SECONDS = 0.25
STEP_SECONDS = (0.9, 1.7, 3.1)
WINDOW = 240
"""Samples: a minute."""

STRIDE = 20
"""Between the begins of two windows."""

GOAL_RATIO, TOLERANCE = 0.95, 0.02
MOST_FALSE = 0.05
COVERED, NEARER = (0.7, 0.9), 0.9
LEAK_BYTES_PER_SECOND = 2**20

_STEPS = """
import json, sys, time
length, number = float(sys.argv[1]), int(sys.argv[2])
begin, marks, kept = time.monotonic(), [], []
for step in range(number):
    marks.append(time.monotonic())
    kept.append(bytearray(int(length * {rate})))
    until = time.monotonic() + 0.4 * length
    while time.monotonic() < until:
        pass
    time.sleep(max(0.0, begin + (step + 1) * length - time.monotonic()))
print(json.dumps(marks))
""".replace("{rate}", str(LEAK_BYTES_PER_SECOND))
"""A process whose steps compute for 40 % of their time and leak a MiB a second; prints when each
began."""

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Values]


@dataclass(frozen=True, kw_only=True)
class RecordedSteps:
    """A process with steps on this machine, as it was sampled.

    Attributes:
        step_seconds: Mean time between two of its own marks.
        own: Processor time of the process per time, equally spaced.
        use: Of all processors of this machine.
        memory_bytes: Used on this machine.
        leaked_bytes: Resident memory of the process.
    """

    step_seconds: float
    own: Values
    use: Values
    memory_bytes: Values
    leaked_bytes: Values


def advisor(effort: Effort, say: Say) -> Iterator[Table]:
    """Periods, kinds of jobs and forecasts from samples of machines."""
    seconds = 150.0 if effort.repeats > 1 else 65.0
    recorded = []
    for length in STEP_SECONDS:
        say(f"steps of {length} s for {seconds:.0f} s")
        recorded.append(_record(length, seconds))
    yield _periods(recorded)
    say("what is no cycle")
    yield _false_cycles(10 * effort.num_seeds)
    say("kinds of jobs")
    yield _kinds(effort.num_seeds)
    say("forecasts")
    yield _forecasts(recorded, effort.num_seeds)


def _record(length: float, seconds: float) -> RecordedSteps:
    number = int(seconds / length)
    process = subprocess.Popen(
        [sys.executable, "-c", _STEPS, str(length), str(number)], stdout=subprocess.PIPE
    )
    watched, sampler = psutil.Process(process.pid), NodeSampler()
    rows: list[tuple[float, float, float, float]] = []
    sampler.take()
    begin, before, used_before = time.monotonic(), time.monotonic(), 0.0
    while process.poll() is None:
        time.sleep(max(0.0, begin + (len(rows) + 1) * EVERY_SECONDS - time.monotonic()))
        sample, now = sampler.take(), time.monotonic()
        try:
            leaked, times = float(watched.memory_info().rss), watched.cpu_times()
        except psutil.NoSuchProcess:
            break
        used = times.user + times.system
        own = (used - used_before) / (now - before)
        before, used_before = now, used
        rows.append((own, sample.cpu_use_ratio, sample.memory_used_bytes, leaked))
    told, _ = process.communicate()
    marks: list[float] = json.loads(told)
    own_use, use, memory, leaked_bytes = np.array(rows, dtype=np.float64).T
    return RecordedSteps(
        step_seconds=fmean(after - earlier for earlier, after in pairwise(marks)),
        own=own_use,
        use=use,
        memory_bytes=memory,
        leaked_bytes=leaked_bytes,
    )


def published_rule(series: Values) -> float | None:
    """The period, in samples, by the rule of Alnair's profiler (CentaurusInfra, 2021).

    Cyclic is a series of whose autocorrelations at all lags below half of its length more than two
    exceed their own mean by 1.96 of their own standard deviations; the period is the median of the
    differences between these lags.
    """
    number = len(series)
    pairs = [(series[lag:], series[: number - lag]) for lag in range(number // 2)]
    if any(first.std() == 0 or second.std() == 0 for first, second in pairs):
        return None
    found = np.array([np.corrcoef(first, second)[0, 1] for first, second in pairs])
    lags = np.flatnonzero(found > found.mean() + 1.96 * found.std())
    return float(np.median(np.diff(lags))) if len(lags) > 2 else None  # noqa: PLR2004 - the rule's


def _periods(recorded: list[RecordedSteps]) -> Table:
    table = Table(
        title="Periods of steps that nobody marks",
        text=f"A process computes for 40 % of each step, on this machine with all that runs here; "
        f"its processor time is sampled every {EVERY_SECONDS} s. Right is a period within "
        f"{TOLERANCE:.0%} of the mean of the process' own marks, in windows of a minute that begin "
        f"every {STRIDE * EVERY_SECONDS:.0f} s. Beside it the rule of a published profiler.",
        columns=("step by its marks", "windows", "right", "wrong", "not told", "published rule"),
    )
    sums = np.zeros(2)
    for run in recorded:
        windows = [
            run.own[begin : begin + WINDOW] for begin in range(0, len(run.own) - WINDOW + 1, STRIDE)
        ]
        found = [find_period(window, EVERY_SECONDS) for window in windows]
        told = [each.seconds for each in found if each is not None]
        right = sum(_is_right(seconds, run.step_seconds) for seconds in told)
        peaks = [lag for window in windows if (lag := published_rule(window)) is not None]
        others = sum(_is_right(lag * EVERY_SECONDS, run.step_seconds) for lag in peaks)
        table.rows.append((
            f"{run.step_seconds:.4f} s", str(len(windows)), str(right), str(len(told) - right),
            str(len(windows) - len(told)), f"{others} right, {len(peaks) - others} wrong",
        ))  # fmt: skip
        sums += (right, len(windows))
    ratio = float(sums[0] / sums[1])
    table.numbers.append(
        Number(
            quantity="periods of recorded steps within 2 %, windows of a minute",
            goal=f">= {GOAL_RATIO:.0%}",
            found=f"{ratio:.1%} of {sums[1]:.0f}",
            is_reached=ratio >= GOAL_RATIO,
        )
    )
    return table


def _is_right(seconds: float, truth: float) -> bool:
    return abs(seconds / truth - 1.0) <= TOLERANCE


def _remembering(rng: np.random.Generator, number: int, correlation: float) -> Values:
    found, noise = np.zeros(number), rng.standard_normal(number)
    for place in range(1, number):
        found[place] = correlation * found[place - 1] + noise[place]
    return found


NO_CYCLES: dict[str, Draw] = {
    "white noise": lambda rng, n: rng.standard_normal(n),
    "random walk": lambda rng, n: np.cumsum(rng.standard_normal(n)),
    "noise that remembers, 0.9": lambda rng, n: _remembering(rng, n, 0.9),
    "idle machine": lambda rng, n: rng.binomial(1, 0.1, n) * rng.random(n) * 0.05,
}


def _false_cycles(number: int) -> Table:
    table = Table(
        title="What is no cycle",
        text=f"{number} series of each kind and length, by seed; in how many a cycle is found, by "
        "us and by the rule of a published profiler (Alnair's).",
        columns=("series", "samples", "ours", "published rule"),
    )
    worst = 0.0
    for name, draw in NO_CYCLES.items():
        for length in (60, WINDOW):
            rng = np.random.default_rng(length)
            series = [draw(rng, length) for _ in range(number)]
            ours = fmean(find_period(each, 1.0) is not None for each in series)
            other = fmean(published_rule(each) is not None for each in series)
            table.rows.append((name, str(length), f"{ours:.1%}", f"{other:.1%}"))
            worst = max(worst, ours)
    table.numbers.append(
        Number(
            quantity="series without a cycle that are called cyclic, worst kind",
            goal=f"<= {MOST_FALSE:.0%}",
            found=f"{worst:.1%}",
            is_reached=worst <= MOST_FALSE,
        )
    )
    return table


def _kinds(number: int) -> Table:
    table = Table(
        title="Kinds of jobs",
        text=f"Machines at work, {number} of each kind by seed, for ten minutes at 1 Hz: what "
        "their samples are taken for, and what is advised.",
        columns=("work", "named right", "not named", "wrong", "advice of these"),
    )
    num_wrong, at = 0, 1.8e9 + np.arange(600.0)
    for name, (draw, kind) in KINDS.items():
        counts, advised = {"right": 0, "unknown": 0, "wrong": 0}, 0
        for seed in range(number):
            figures = draw(np.random.default_rng(seed), at)
            gpu = {f.removeprefix("gpu."): v for f, v in figures.items() if f.startswith("gpu.")}
            found = job_type(gpu, figures).kind
            counts["right" if found == kind else "unknown" if found == "unknown" else "wrong"] += 1
            said = of_samples(samples(figures, at), 1.0,
                              Worth(seconds=300.0))  # fmt: skip
            advised += len(said.advice)
        num_wrong += counts["wrong"]
        shown = "unknown" if kind == "unknown" else f"{counts['right']}"
        table.rows.append((
            name, shown if kind != "unknown" else f"{counts['right']} (abstains)",
            str(counts["unknown"] if kind != "unknown" else 0), str(counts["wrong"]), str(advised),
        ))  # fmt: skip
    table.numbers.append(
        Number(
            quantity="kinds of jobs that are named wrong",
            goal="0",
            found=f"{num_wrong} of {number * len(KINDS)}",
            is_reached=num_wrong == 0,
        )
    )
    return table


AT = np.arange(7200.0)
SERIES: dict[str, Draw] = {
    "white noise": lambda rng, n: rng.standard_normal(n),
    "random walk": lambda rng, n: np.cumsum(rng.standard_normal(n)),
    "noise that remembers, 0.99": lambda rng, n: _remembering(rng, n, 0.99),
    "steps": lambda _, n: np.floor(np.arange(float(n)) / 600.0),
    "sawtooth": lambda rng, n: np.arange(float(n)) % rng.uniform(1000, 1600),
    "leak": lambda rng, n: (
        np.arange(float(n)) * rng.uniform(5e-4, 2e-3) + 0.1 * _remembering(rng, n, 0.9)
    ),
    "season of 600 s": lambda rng, n: (
        np.sin(2 * np.pi * np.arange(n) / 600) + 0.2 * rng.standard_normal(n)
    ),
}


def _forecasts(recorded: list[RecordedSteps], number: int) -> Table:
    table = Table(
        title="Forecasts",
        text="Series that are cut at places drawn by seed, forecast ahead for 5 to 25 % of what is "
        "known, and compared with what came: those that are shown, their mean error beside that "
        "of the last value, and how often the interval of 80 % held. First those recorded here: "
        "the use of this machine's processors, its memory, and that of a process that leaks.",
        columns=("series", "cut", "shown", "error / naive", "held"),
    )
    drawn: dict[str, list[tuple[Values, float | None]]] = {
        "recorded: use": [(run.use, None) for run in recorded],
        "recorded: memory": [(run.memory_bytes, None) for run in recorded],
        "recorded: a process that leaks": [(run.leaked_bytes, None) for run in recorded],
    }
    for place, (name, draw) in enumerate(SERIES.items()):
        rng = np.random.default_rng(place)
        season = 600.0 if name.startswith("season") else None
        drawn[name] = [(draw(rng, len(AT)), season) for _ in range(number)]
    everywhere: list[tuple[bool, float, float]] = []
    for place, (name, series) in enumerate(drawn.items()):
        rng = np.random.default_rng(100 + place)
        cuts = max(1, round(3 * number / len(series))) if name.startswith("recorded") else 1
        found = [_compared(values, season, rng) for values, season in series for _ in range(cuts)]
        shown = [each for each in found if each is not None]
        everywhere += shown
        ratio = sum(each[1] for each in shown) / max(sum(each[2] for each in shown), 1e-300)
        cells = (f"{ratio:.2f}", f"{fmean(each[0] for each in shown):.0%}") if shown else ("", "")
        table.rows.append((name, str(len(found)), str(len(shown)), *cells))
    table.numbers += _of_forecasts(everywhere)
    return table


def _of_forecasts(shown: list[tuple[bool, float, float]]) -> list[Number]:
    """How often the interval held, and how often the forecast was nearer than the last value."""
    held = fmean(each[0] for each in shown) if shown else 0.0
    nearer = fmean(error < naive for _, error, naive in shown) if shown else 0.0
    return [
        Number(
            quantity="interval of 80 % of the forecasts that are shown",
            goal=f"holds in {COVERED[0]:.0%} to {COVERED[1]:.0%}",
            found=f"{held:.0%} of {len(shown)}",
            is_reached=COVERED[0] <= held <= COVERED[1],
        ),
        Number(
            quantity="forecasts that are shown and were nearer than the last value",
            goal=f">= {NEARER:.0%}",
            found=f"{nearer:.0%} of {len(shown)}",
            is_reached=nearer >= NEARER,
        ),
    ]


def _compared(
    values: Values, season: float | None, rng: np.random.Generator
) -> tuple[bool, float, float] | None:
    """Whether the interval held, and the errors of forecast and last value; None: not shown."""
    number = len(values)
    cut = int(rng.integers(number // 2, int(0.8 * number)))
    known, times = values[:cut], np.arange(float(number))
    found = find_forecast(times[:cut], known, cut * float(rng.uniform(0.05, 0.25)), season)
    if found is None:
        return None
    half = max(1, cut // NUM_BINS // 2)
    place = round(found.at_seconds)
    actual = float(values[place - half : place + half + 1].mean())
    is_held = found.low <= actual <= found.high
    return is_held, abs(actual - found.middle), abs(actual - found.now)
