"""Recorded runs side by side: what was tried differently first, then how good and how fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hetero_hvd.messages import RunStarted
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.reports.catalogue import recorded_run
from hetero_hvd.run.reports.costs import Costs, costs_of
from hetero_hvd.run.reports.facts import facts_of
from hetero_hvd.run.reports.series import Line, ReportContent, lines_of, report_of

UNKNOWN = "not measured"


def compare_runs(folders: Sequence[Path]) -> Iterator[str]:
    """In words, each line with a value of every run, in their order.

    Args:
        folders: Output folders of runs.

    Raises:
        JobError: One of them is not recorded there.
    """
    runs = [report_of(folder) for folder in folders]
    records = [read_run(folder) for folder in folders]
    yield f"runs: {_listed(f'{run.run_id} ({run.state})' for run in runs)}"
    yield from _differences([_tried(record) for record in records])
    metrics = [facts_of(record).metrics for record in records]
    for name in sorted({name for found in metrics for name in found}):
        yield f"{name}: {_listed(_number(found.get(name)) for found in metrics)}"
    yield _loss(runs)
    yield _speed(runs)
    yield from _spent([costs_of(record) for record in records])
    for worker in sorted({worker for run in runs for worker in run.plots.workers}):
        shares = _listed(_last_share(run, worker) for run in runs)
        yield f"last share of {worker}: {shares}"
    for run in runs:
        for judged in run.verdict:
            yield f"{run.run_id}: {judged.words}"


def as_plain(folders: Sequence[Path]) -> dict[str, Any]:
    """What is known of each run, and what was tried in another way, ready for JSON.

    Args:
        folders: Output folders of runs.

    Returns:
        `runs`: as `hetero-hvd runs --json` lists them; `different`: name of a tag, a setting or a
        fact of the software to its value in each run, None where a run does not tell it.

    Raises:
        JobError: One of them is not recorded there.
    """
    different = dict(_unequal([_tried(read_run(folder)) for folder in folders]))
    return {"runs": [recorded_run(folder).as_dict() for folder in folders], "different": different}


def _listed(values: Iterable[str]) -> str:
    *first, last = values
    return f"{', '.join(first)} and {last}" if first else last


def _differences(tried: Sequence[dict[str, str]]) -> Iterator[str]:
    """What was not told, or was not there, in the same way in all."""
    for name, values in _unequal(tried):
        yield f"{name}: {_listed('unknown' if value is None else value for value in values)}"


def _unequal(tried: Sequence[dict[str, str]]) -> Iterator[tuple[str, list[str | None]]]:
    for name in dict.fromkeys(name for facts in tried for name in facts):
        values = [facts.get(name) for facts in tried]
        if len(set(values)) > 1 and name != "output":
            yield name, values


def _tried(record: Record) -> dict[str, str]:
    """What was tried in a run, by name: tags first, settings, then what it stands on."""
    for _, event in record.events:
        if isinstance(event, RunStarted):
            tags = {f"tag.{name}": value for name, value in event.tags.items()}
            own = {"command": " ".join(event.command), "nodes": " + ".join(event.nodes)}
            return {"name": event.name or "none"} | tags | own | event.settings | event.origin
    return {}


def _speed(runs: Sequence[ReportContent]) -> str:
    """Samples per second, and each as a change from the first."""
    first = runs[0].samples_per_second
    shown = []
    for run in runs:
        speed = run.samples_per_second
        is_other = run is not runs[0]
        change = f" ({speed / first - 1:+.1%})" if is_other and speed and first else ""
        shown.append((UNKNOWN if speed is None else f"{speed:.0f}") + change)
    return f"samples/s: {_listed(shown)}"


def _spent(costs: Sequence[Costs]) -> Iterator[str]:
    """Money and energy, where at least one run has any."""
    bills = [found.run.bill for found in costs]
    if any(bill.cost is not None for bill in bills):
        shown = []
        for bill in bills:
            without = f" without {', '.join(bill.unpriced)}" if bill.unpriced else ""
            shown.append("not known" if bill.cost is None else f"{bill.cost:.4g}{without}")
        yield f"cost: {_listed(shown)}"
    each = [found.per_sample(found.run.bill.cost) for found in costs]
    if any(each):
        shown = [UNKNOWN if cost is None else f"{cost * 1e6:.4g}" for cost in each]
        yield f"cost per million samples: {_listed(shown)}"
    joules = [found.run.joules for found in costs]
    if any(joules):
        yield f"joules: {_listed(map(_number, joules))}"
        yield f"joules per sample: {_listed(_number(c.per_sample(c.run.joules)) for c in costs)}"


def _loss(runs: Sequence[ReportContent]) -> str:
    """At the last step that all have reached, as near as the points are."""
    lines = [next(iter(lines_of(run.plots, "loss").values()), Line([], [])) for run in runs]
    if not all(line.steps for line in lines):
        return f"loss: {UNKNOWN}"
    step = min(line.steps[-1] for line in lines)
    found = []
    for line in lines:
        index = max((i for i, at in enumerate(line.steps) if at <= step), default=0)
        found.append(_number(line.values[index]))
    return f"loss at step {step}: {_listed(found)}"


def _last_share(run: ReportContent, worker: str) -> str:
    """Of the newest whole batch in which it was."""
    line = lines_of(run.plots, "shares").get(worker, Line([], []))
    return _number(next((value for value in reversed(line.values) if value is not None), None))


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"
