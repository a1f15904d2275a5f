"""The end of a run: the summary as plain data for summary.json, and as text for people."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from hetero_hvd.exit_codes import exit_in_words
from hetero_hvd.messages import Finding, WorkerId
from hetero_hvd.run.reports.costs import Costs, sums_in_words
from hetero_hvd.run.tracking.summary import RunSegment, Summary, WorkerRecord

_NUMBERS = (
    ("uniform shares", "uniform_samples_per_second", "{:.0f} samples/s"),
    ("balanced shares", "balanced_samples_per_second", "{:.0f} samples/s"),
    ("ideal", "ideal_samples_per_second", "{:.0f} samples/s"),
    ("balanced / uniform", "balanced_by_uniform_ratio", "{:.2f}"),
    ("balanced / ideal", "share_of_ideal_ratio", "{:.2f}"),
    ("steps until balanced", "steps_until_balanced", "{}"),
)
_NUMBERS_WITHOUT_PLAN = (
    ("speed", "balanced_samples_per_second", "{:.0f} samples/s"),
    ("ideal", "ideal_samples_per_second", "{:.0f} samples/s"),
    ("speed / ideal", "share_of_ideal_ratio", "{:.2f}"),
)


def as_dict(
    summary: Summary, *, exit_code: int, reason: str, costs: Costs | None = None
) -> dict[str, Any]:
    """What happened in a run. Unknown values are None.

    Args:
        summary: Of the run.
        exit_code: Of the job.
        reason: Why it ended.
        costs: From its record; None: that cannot be read.
    """
    balanced = _balanced(summary)
    uniform = summary.uniform.samples_per_second
    measured = balanced.samples_per_second
    ideal = balanced.ideal_samples_per_second
    return {
        "exit_code": exit_code,
        "reason": reason,
        "steps": summary.num_steps,
        # An upper bound, as an epoch's last batch may be smaller; where shares follow no plan an
        # estimate, or 0 if nothing was measured.
        "samples": round(summary.num_steps * (_mean_batch_size(summary) or 0)),
        "global_batch_size": summary.global_batch_size,
        "follows_plan": summary.follows_plan,
        "uniform_samples_per_second": uniform,
        "balanced_samples_per_second": measured,
        "balanced_by_uniform_ratio": measured / uniform if measured and uniform else None,
        "ideal_samples_per_second": ideal,
        "share_of_ideal_ratio": measured / ideal if measured and ideal else None,
        "steps_until_balanced": summary.steps_until_balanced,
        "costs": costs and costs.as_dict(),
        "verdict": [msgspec.to_builtins(found) for found in summary.findings],
        "evaluation": _evaluation(summary),
        "memberships": summary.num_memberships,
        "replicas_equal": summary.is_consistent,
        "workers": {
            str(worker): _worker(summary, worker, record)
            for worker, record in summary.workers.items()
        },
    }


def as_text(facts: dict[str, Any]) -> Iterator[str]:
    """The lines of the summary that a person reads.

    Args:
        facts: From `as_dict`.
    """
    yield f"ended: {facts['reason']}"
    if not facts["memberships"]:
        return
    for label, text in _speeds(facts):
        yield _line(label, text)
    for what, words in sums_in_words(facts["costs"]) if facts["costs"] else ():
        yield _line(what, words)
    for found in facts["verdict"]:
        yield _line("verdict", str(msgspec.convert(found, Finding)))
    if facts["evaluation"]:
        metrics = facts["evaluation"]["metrics"]
        shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        yield _line("last evaluation", f"{shown} (epoch {facts['evaluation']['epoch']})")
    if facts["memberships"] > 1:
        yield _line("resets", f"{facts['memberships'] - 1}, for workers who were lost or joined")
    if facts["replicas_equal"] is False:
        yield "  THE REPLICAS DIFFER: the workers ended with different parameters"
    for name, worker in facts["workers"].items():
        yield _line(name, _worker_line(worker))


def _speeds(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """How many steps, how large, how fast; labels and texts."""
    follows_plan = facts["follows_plan"]
    steps = f"{facts['steps']}"
    if follows_plan:
        steps += f" of {facts['global_batch_size']} samples"
    elif facts["samples"]:
        steps += f" of {facts['samples'] / facts['steps']:.0f} samples on average"
    yield "steps", steps
    for label, name, form in _NUMBERS if follows_plan else _NUMBERS_WITHOUT_PLAN:
        if facts[name] is not None:
            yield label, form.format(facts[name])


def _line(label: str, text: str) -> str:
    return f"  {label:<20} {text}"


def _worker_line(worker: dict[str, Any]) -> str:
    parts = []
    if worker["mean_share"] is not None:
        parts.append(f"share {worker['mean_share']:.0f} on average")
    elif worker["shares"]:
        changes = [share for _, share in worker["shares"]]
        kept = changes if len(changes) <= 6 else [*changes[:2], "...", *changes[-3:]]  # noqa: PLR2004
        parts.append("share " + " > ".join(map(str, kept)))
    if worker["mean_busy_seconds"] is not None:
        parts.append(f"busy {worker['mean_busy_seconds'] * 1e3:.0f} ms")
    if worker["recoveries"]:
        slowest = max(recovery["seconds"] for recovery in worker["recoveries"])
        parts.append(f"{len(worker['recoveries'])} resets, longest {slowest:.2f} s")
    is_ended_by_driver = worker.get("ended_by_driver", False)
    codes = worker["exit_codes"]
    own = codes[:-1] if is_ended_by_driver else codes  # the last is of our signal
    if any(own):
        ends = (exit_in_words(code) if code else "ended well" for code in own)
        runs = [(words, len(list(same))) for words, same in itertools.groupby(ends)]
        told = [f"{words} ({count} times)" if count > 1 else words for words, count in runs]
        parts.append(", then ".join(told + ["was ended with the job"] * is_ended_by_driver))
    return "  ".join(parts)


def _balanced(summary: Summary) -> RunSegment:
    """The part of the run to quote: since the plan is balanced, or all after the baseline."""
    return summary.balanced if summary.balanced.num_seconds else summary.converging


def _mean_batch_size(summary: Summary) -> float | None:
    """Samples per step: what plans have, or what was measured; None: it was not."""
    return summary.global_batch_size if summary.follows_plan else summary.converging.mean_batch_size


def _evaluation(summary: Summary) -> dict[str, Any] | None:
    found = summary.evaluated
    if found is None:
        return None
    return {"epoch": found.epoch, "step": found.step, "metrics": found.metrics}


def _worker(summary: Summary, worker: WorkerId, record: WorkerRecord) -> dict[str, Any]:
    return {
        "shares": record.shares,
        "mean_share": None if summary.follows_plan else summary.converging.mean_share(worker),
        "mean_busy_seconds": _balanced(summary).mean_busy_seconds(worker),
        "recoveries": [
            {
                "cause": r.cause,
                "seconds": r.seconds,
                "broadcast": r.broadcast,
                "keeps_steps": r.keeps_steps,
            }
            for r in record.recoveries
        ],
        "applied_steps": record.finished.applied_steps if record.finished else None,
        "checksum": record.finished.checksum if record.finished else None,
        "exit_codes": record.exit_codes,
        "ended_by_driver": record.is_ended_by_driver,
    }
