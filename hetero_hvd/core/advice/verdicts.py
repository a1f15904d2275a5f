"""Advice from verdicts: what limits a run, memory that is used up, who is slow in many runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from hetero_hvd.core.advice.advice import Advice, Gain
from hetero_hvd.messages import SLOW_BY, Cause, Finding

MIN_RUNS = 2
"""In so many runs a node must have been slow to be called slow again."""

MIN_RUNS_RATIO = 0.5
"""And in so large a part of those in which it took part."""


STEP_ERROR_RATIO = 0.02
"""A step's time is known to so much: who takes all away that is lost may gain that more."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A run as far as it is needed here.

    Attributes:
        name: What it is called.
        nodes: Who has taken part in it.
        seconds: How long it has trained, > 0; NaN: not measured.
        findings: Its verdict.
    """

    name: str
    nodes: frozenset[str]
    seconds: float
    findings: Sequence[Finding]


def limits(findings: Sequence[Finding]) -> Iterator[Advice]:
    """What the verdict of one run says that could be gained, and memory that is nearly used up."""
    for finding in findings:
        if finding.kind == "memory" and finding.is_complete and finding.next_step:
            yield Advice(
                kind="memory",
                id=f"memory:{_place(finding)}",
                what=finding.next_step,
                evidence=(finding.words,),
            )
        elif finding.is_problem and finding.next_step and finding.max_gain_ratio is not None:
            most = (1.0 + finding.max_gain_ratio) * (1.0 + STEP_ERROR_RATIO) - 1.0
            yield Advice(
                kind="limit",
                id=f"limit:{finding.kind}:{_place(finding)}",
                what=finding.next_step,
                evidence=(finding.words,),
                gains=(Gain(goal="speed", low=0.0, high=most),),
                unknown=("how much of that time it takes away",),
            )


def recurring(runs: Sequence[Judgement]) -> Iterator[Advice]:
    """Nodes that were slow in one run after the other, whatever was trained."""
    present: dict[str, int] = defaultdict(int)
    slow: dict[str, dict[str, Finding]] = defaultdict(dict)
    seconds = {run.name: run.seconds for run in runs}
    for run in runs:
        for node in run.nodes:
            present[node] += 1
        for finding in run.findings:
            if finding.kind == "straggler" and finding.worker is not None:
                slow[finding.worker.node].setdefault(run.name, finding)
    for node, found in sorted(slow.items()):
        if len(found) < MIN_RUNS or len(found) < MIN_RUNS_RATIO * present[node]:
            continue
        causes = sorted({finding.cause for finding in found.values()})
        only = causes[0] if len(causes) == 1 else "unknown"
        yield Advice(
            kind="recurring",
            id=f"recurring:{node}",
            what=f"{_advice_against(only, node)}: {node} was slow in {len(found)} runs "
            f"of {present[node]}",
            evidence=tuple(
                f"{name}: {finding.words}{_lost(finding, seconds[name])}"
                for name, finding in found.items()
            ),
            unknown=("whether it is slow in the next run, too, and by how much",),
        )


def _place(finding: Finding) -> str:
    """Of what it is: a worker, or all."""
    return "all" if finding.worker is None else str(finding.worker)


def _advice_against(cause: str, node: str) -> str:
    """What to do; an earlier version may have recorded a cause that is not known now."""
    slow_by = SLOW_BY.get(cast("Cause", cause), SLOW_BY["unknown"])
    return slow_by.advice.format(node=node)


def _lost(finding: Finding, seconds: float) -> str:
    """What part of a run it has cost, since it was noticed; empty: not known.

    How slow it is differs from run to run: what it would cost in the next one is not promised.
    """
    lost = finding.evidence.get("cost_seconds", math.nan)
    return f", {lost / seconds:.0%} of the run" if lost < seconds else ""
