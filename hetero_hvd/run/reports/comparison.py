"""Two recorded runs side by side: settings, speed, loss, shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.reports.series import Series, series_of

UNKNOWN = "not measured"


def compare_runs(first: Path, second: Path) -> Iterator[str]:
    """In words, what they have in common last.

    Args:
        first: Output folder of a run.
        second: The other one.

    Raises:
        JobError: One of them is not recorded there.
    """
    one, other = series_of(first), series_of(second)
    yield f"runs: {one.run_id} ({one.state}) and {other.run_id} ({other.state})"
    yield from _settings(first, second)
    yield _speed(one, other)
    yield _loss(one, other)
    for worker in sorted(one.shares.keys() | other.shares.keys()):
        shares = [_last_share(series, worker) for series in (one, other)]
        yield f"share of {worker} at the end: {shares[0]} and {shares[1]}"
    for name, series in (("first", one), ("second", other)):
        for sentence in series.verdict:
            yield f"the {name}: {sentence}"


def _settings(first: Path, second: Path) -> Iterator[str]:
    """What the two were told differently."""
    told = [_facts(folder) for folder in (first, second)]
    for name in sorted(told[0].keys() | told[1].keys()):
        before, after = (facts.get(name, "unknown") for facts in told)
        if before != after and name != "output":
            yield f"{name}: {before} and {after}"


def _facts(folder: Path) -> dict[str, str]:
    for _, event in read_record(folder).events:
        if isinstance(event, RunStarted):
            more = {"command": " ".join(event.command), "nodes": ", ".join(event.nodes)}
            return event.settings | more
    return {}


def _speed(one: Series, other: Series) -> str:
    before, after = one.samples_per_second, other.samples_per_second
    if before is None or after is None:
        return f"speed: {_number(before)} and {_number(after)} samples/s"
    return f"speed: {before:.0f} and {after:.0f} samples/s ({after / before - 1:+.1%})"


def _loss(one: Series, other: Series) -> str:
    """At the last step that both have reached, as near as the points are."""
    if not (one.steps and other.steps):
        return f"loss: {UNKNOWN}"
    step = min(one.steps[-1], other.steps[-1])
    found = []
    for series in (one, other):
        index = max((i for i, at in enumerate(series.steps) if at <= step), default=0)
        found.append(_number(series.loss[index]))
    return f"loss at step {step}: {found[0]} and {found[1]}"


def _last_share(series: Series, worker: str) -> str:
    """Of the last whole batch: the one at the end of an epoch may be smaller."""
    lines = [values for values in series.shares.values() if values]
    totals = [sum(share or 0.0 for share in point) for point in zip(*lines, strict=True)]
    if not totals or not series.shares.get(worker):
        return UNKNOWN
    last = max(range(len(totals)), key=lambda index: (totals[index], index))
    return _number(series.shares[worker][last])


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"
