"""All bounds by which something is advised, told or kept silent, with where they come from.

The values stand beside what uses them; this is the only table of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hetero_hvd.core.advice import (
    advice,
    machines,
    placement_trial,
    placements,
    predicted,
    race,
    race_verdict,
    setting_trial,
    trial_visit,
    verdicts,
)
from hetero_hvd.core.patterns import changes, cycle, forecast, job_type, period

OURS_MEASURED = "`scripts/bench advisor`"
CHOICE = "chosen"


class Threshold(NamedTuple):
    """One bound.

    Attributes:
        what: What it is of, in words.
        value: As people write it.
        source: Where it comes from.
    """

    what: str
    value: str
    source: str


THRESHOLDS = (
    Threshold("least gain", f"{advice.WORTH_RATIO:.0%}", f"{CHOICE} (`--worth`)"),
    Threshold("least idle time", f"{advice.WORTH_SECONDS / 60:.0f} min", f"{CHOICE} (`--worth`)"),
    Threshold(
        "interval of a gain",
        f"{1 - advice.GAIN_ERROR:.0%}",
        "Student (1908), of a jackknife (Tukey 1958); of a trial's pairs of one round order "
        "statistics of the median (Thompson 1936)",
    ),
    Threshold(
        "sets of nodes are judged",
        f"after {placements.MIN_INTERVALS} intervals of each worker, in at most "
        f"{placements.MAX_BLOCKS} blocks",
        CHOICE,
    ),
    Threshold(
        "sets of nodes that are looked at",
        f"all of {placements.MAX_NODES} nodes, in a trial of {predicted.MAX_NODES}; of more at "
        f"most {placements.MAX_SETS} for each goal",
        f"{CHOICE}: a driver has other things to do",
    ),
    Threshold(
        "sets that are as good",
        f"within {placements.SAME_RATIO:.0%} by their curves; certainly within "
        f"{race_verdict.SAME_RATIO:.0%} in a trial",
        CHOICE,
    ),
    Threshold(
        "a prediction of a trial",
        f"± {predicted.MODEL_RATIO:.0%}, and {predicted.WIDTH} standard errors",
        CHOICE,
    ),
    Threshold(
        "what a trial says is wrong",
        f"in {race.ERROR:.0%} of trials at most, by {race.MIN_PAIRS} rounds or more",
        "order statistics of the median (Thompson 1936), values of one round for fewer (Kish "
        "1965); Bonferroni; races (Maron and Moore 1994)",
    ),
    Threshold(
        "a visit of a trial",
        f"{trial_visit.MIN_EXCHANGES} exchanges, after {trial_visit.WARM_UP} that do not "
        f"count; for a sample of power {placement_trial.MAX_POWER_SECONDS:g} s more",
        CHOICE,
    ),
    Threshold(
        "what a trial measures",
        f"{placement_trial.MAX_MEASURED} sets, each in {placement_trial.MAX_ROUNDS} rounds; a "
        f"setting in {setting_trial.MAX_ROUNDS}",
        f"{CHOICE}: each visit costs a start of processes",
    ),
    Threshold(
        f"given up after {race.MIN_PAIRS} rounds",
        f"each exchange {race.MIN_BEHIND_RATIO:.0%} behind all of the best in that round",
        f"{CHOICE}: a rule, which no probability is promised of",
    ),
    Threshold("given up in vain", f"after {placement_trial.MAX_VOID} visits", CHOICE),
    Threshold(
        "what is lost, at most",
        f"{verdicts.STEP_ERROR_RATIO:.0%} more than was measured",
        CHOICE,
    ),
    Threshold(
        "a node is slow again",
        f"{verdicts.MIN_RUNS} runs, {verdicts.MIN_RUNS_RATIO:.0%} of its runs",
        CHOICE,
    ),
    Threshold(
        "a device is idle",
        f"use and memory traffic <= {job_type.IDLE_RATIO:.0%}",
        "as in recordings' reports: what daemons of a machine take",
    ),
    Threshold("an idle phase", f">= {machines.MIN_IDLE_SECONDS:.0f} s", CHOICE),
    Threshold(
        "a device stands still",
        f"idle now, and for {machines.STANDS_STILL_RATIO:.0%} of the time; or for "
        f"{machines.BETWEEN_RATIO:.0%} in {machines.BETWEEN_PHASES} phases",
        CHOICE,
    ),
    Threshold("an idle GPU is held", f">= {machines.HELD_RATIO:.0%} of its memory", CHOICE),
    Threshold(
        "work is told from waiting",
        f"waiting <= {1 - job_type.MIN_CONTRAST:.0%} of the level at work",
        "Otsu (1979) parts them; nvidia-smi(1): a kernel that waits counts as use",
    ),
    Threshold(
        "bound by its own computing", f"works >= {job_type.BUSY_RATIO:.0%} of the time", CHOICE
    ),
    Threshold(
        "busier while the device waits",
        f">= {job_type.MIN_RATIO:g} times, and {job_type.MIN_T:g} standard errors",
        "Welch (1947), of as many values as there were turns",
    ),
    Threshold(
        "a link brings data",
        f"receives >= {job_type.ONE_WAY_RATIO:g} times what it sends",
        "an allreduce sends what it receives (Patarasuk and Yuan 2009)",
    ),
    Threshold(
        "a machine's memory is nearly used up",
        f"{machines.FULL_RATIO:.0%} in half of the samples",
        CHOICE,
    ),
    Threshold(
        "memory that fills up is told",
        f"within {machines.MAX_AHEAD_RATIO:g} times the known time and "
        f"{machines.MAX_AHEAD_SECONDS / 86400:.0f} d",
        CHOICE,
    ),
    Threshold(
        "a period",
        f"p <= {period.MAX_P_VALUE:g}, {period.MIN_CYCLES} cycles, autocorrelation >= "
        f"{period.MIN_CORRELATION:g}",
        f"Fisher (1929), Mann and Lees (1996); {OURS_MEASURED}",
    ),
    Threshold(
        "a cycle that lasts",
        f"{cycle.MIN_WINDOW_RATIO:.0%} of the windows, within {cycle.MAX_SPREAD_RATIO:.0%}",
        CHOICE,
    ),
    Threshold(
        "a change of level",
        f"{changes.MIN_CHANGE_DEVIATIONS:g} standard deviations, and "
        f"{machines.MIN_CHANGE_RATIO:.0%} of use",
        "penalty of the modified Bayes' information criterion (Zhang and Siegmund 2007); "
        "optimal partitioning (Jackson 2005)",
    ),
    Threshold(
        "a forecast is shown",
        f"errors {forecast.MIN_SKILL_RATIO:.0%} below those of the last value, in both halves",
        f"Hyndman and Athanasopoulos (2021), 5.2; {OURS_MEASURED}",
    ),
    Threshold(
        "interval of a forecast",
        f"{forecast.COVERAGE:.0%} of its own errors in the backtest",
        f"conformal (Vovk 2005); {OURS_MEASURED}",
    ),
)


def table() -> Iterator[str]:
    """The rows of the page `docs/operations/advice.md`."""
    yield "| bound | value | from |"
    yield "|---|---|---|"
    for each in THRESHOLDS:
        yield f"| {each.what} | {each.value} | {each.source} |"
