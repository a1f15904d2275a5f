"""What a trial of placements has measured: as a table for people, and as advice."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from statistics import median

from hetero_hvd.core.advice.advice import GAIN_ERROR, WORTH_RATIO, Advice, Gain, Goal
from hetero_hvd.core.advice.race import Ratio, median_ratio_of, ratio_of
from hetero_hvd.messages import PlacementTried, TrialReported

HEAD = ("placement", "samples/s", "predicted", "cost/1M", "J/sample", "steps", "verdict")


def trial_in_words(report: TrialReported) -> Iterator[str]:
    """A table, a line for each placement; nothing where none was measured."""
    measured = [each for each in report.placements if each.samples_per_second]
    if not measured:
        return
    rows = [HEAD]
    rows += [_row(each) for each in report.placements]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(cell.ljust(width) for cell, width in cells).rstrip()


def _row(each: PlacementTried) -> tuple[str, str, str, str, str, str, str]:
    speed = median(each.samples_per_second) if each.samples_per_second else math.nan
    void = f"void: {each.num_void}" if each.num_void else ""
    verdict = "; ".join(filter(None, (each.verdict, void)))
    return (
        " ".join(each.nodes),
        _figure(speed),
        _span(each),
        _figure(1e6 * each.cost_per_sample),
        _figure(each.joules_per_sample),
        str(each.num_steps) if each.num_steps else "-",
        verdict,
    )


def _span(each: PlacementTried) -> str:
    if math.isnan(each.predicted_low):
        return "-"
    return f"{each.predicted_low:.4g} to {each.predicted_high:.4g}"


def _figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "-"


def measured_placements(
    placements: Sequence[PlacementTried],
    nodes: Sequence[str],
    *,
    source: str,
    worth_ratio: float = WORTH_RATIO,
    command: str = "",
) -> Iterator[Advice]:
    """For each goal the best set of nodes that was measured, where it is better for certain.

    Args:
        placements: Of one trial.
        nodes: Who trains now.
        source: Which trial it was, in words.
        worth_ratio: The least gain.
        command: How to leave a node out; `{node}` is its name.
    """
    measured = {frozenset(each.nodes): each for each in placements if each.samples_per_second}
    before = measured.pop(frozenset(nodes), None)
    told = set()
    if before is None:
        return
    for goal in ("speed", "money", "energy"):
        gains = {
            each.nodes: _gains(each, before)
            for each in measured.values()
            if set(each.nodes) < set(nodes)
        }
        able = {nodes_: found for nodes_, found in gains.items() if goal in found}
        best = max(able, key=lambda each: able[each][goal].low, default=None)
        if best is None or best in told or able[best][goal].low < worth_ratio:
            continue
        told.add(best)
        found = able[best]
        left_out = [node for node in nodes if node not in best]
        yield Advice(
            kind="placement",
            id=f"placement:{'+'.join(left_out)}",
            what=f"leave {' and '.join(left_out)} out",
            evidence=tuple(_evidence(measured[frozenset(best)], before, source)),
            gains=(found[goal], *(gain for other, gain in found.items() if other != goal)),
            command=" && ".join(command.format(node=shlex.quote(node)) for node in left_out),
            unknown=("what a node that is left out draws meanwhile",) if goal == "energy" else (),
        )


def _gains(after: PlacementTried, before: PlacementTried) -> dict[Goal, Gain]:
    """What one placement brings over another one, by the rounds in which both were measured."""
    ratio = _ratio(after, before)
    if not ratio.low:
        return {}
    found: dict[Goal, Gain] = {
        "speed": Gain(goal="speed", low=ratio.low - 1.0, high=ratio.high - 1.0)
    }
    speeds = median(after.samples_per_second) / median(before.samples_per_second)
    rates: dict[Goal, float] = {
        "money": speeds * after.cost_per_sample / before.cost_per_sample
        if before.cost_per_sample
        else math.nan,
        "energy": speeds * after.joules_per_sample / before.joules_per_sample
        if before.joules_per_sample
        else math.nan,
    }
    for goal, rate in rates.items():
        if math.isfinite(rate):
            found[goal] = Gain(goal=goal, low=1.0 - rate / ratio.low, high=1.0 - rate / ratio.high)
    return found


def _ratio(after: PlacementTried, before: PlacementTried) -> Ratio:
    """By each exchange; by rounds alone where an earlier version has kept no more."""
    if after.exchanges and before.exchanges:
        exchanges = (
            dict(zip(each.rounds, each.exchanges, strict=True)) for each in (after, before)
        )
        return median_ratio_of(*exchanges, error=GAIN_ERROR)
    rounds = (
        dict(zip(each.rounds, each.samples_per_second, strict=True)) for each in (after, before)
    )
    return ratio_of(*rounds, error=GAIN_ERROR)


def _evidence(after: PlacementTried, before: PlacementTried, source: str) -> Iterator[str]:
    for each in (after, before):
        speeds = each.samples_per_second
        yield (
            f"{', '.join(each.nodes)}: {median(speeds):.4g} samples/s ({min(speeds):.4g} to "
            f"{max(speeds):.4g}) over {each.num_steps} steps in {len(speeds)} rounds"
        )
    yield f"measured by {source}"
