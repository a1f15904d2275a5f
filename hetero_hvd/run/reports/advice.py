"""What is to be changed about recorded runs: their records as `core.advice` wants them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from hetero_hvd.core.advice.advice import NOTHING, WORTH_RATIO, Advice, Advised, Worth, ranked
from hetero_hvd.core.advice.measured import measured_placements
from hetero_hvd.core.advice.placements import MeasuredJob, placements
from hetero_hvd.core.advice.verdicts import Judgement, limits, recurring
from hetero_hvd.run.recordings.frames import is_recording
from hetero_hvd.run.recordings.machine_advice import of_recording, of_run
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.placements import kept_trial
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.records.samples import COLUMNS as ALL_COLUMNS
from hetero_hvd.run.reports.costs import Costs, costs_of, exposed_seconds
from hetero_hvd.run.reports.facts import facts_of, intervals_of, throughput, trained
from hetero_hvd.run.reports.share_times import newest_members, share_times


def advised(folders: Sequence[Path], worth: Worth, *, seconds: float | None = None) -> Advised:
    """What to change.

    Args:
        folders: Of runs and recordings, at least one. What is said of one run is said of the last
            one; all of them tell who is slow again and again.
        worth: What is told.
        seconds: The newest time of recordings that counts; None: all.

    Raises:
        JobError: One of them is neither.
    """
    recordings = [folder for folder in folders if is_recording(folder)]
    said = [of_recording(folder, worth, seconds=seconds) for folder in recordings]
    runs = [folder for folder in folders if folder not in recordings]
    if runs:
        said.insert(0, _of_runs(runs, worth))
    return Advised(
        advice=ranked((advice for each in said for advice in each.advice), worth),
        not_judged=tuple(line for each in said for line in each.not_judged),
        seen=tuple(line for each in said for line in each.seen),
    )


def _of_runs(folders: Sequence[Path], worth: Worth) -> Advised:
    newest = folders[-1]
    record = read_run(newest, sampled=ALL_COLUMNS)
    records = {folder: record if folder == newest else read_run(folder) for folder in folders}
    found, not_judged = _of_nodes(record, costs_of(record), newest, worth.ratio)
    joined = newest_members(record)
    was_tried = joined is not None and kept_trial(newest, joined) is not None
    judged = [_judgement(folder, each) for folder, each in records.items()]
    findings = judged[-1].findings
    places_out = bool(found) or was_tried
    found += (
        advice
        for advice in limits(findings)
        if not (places_out and advice.what.startswith("leave "))  # the same, with figures
    )
    found += recurring(list({each.name: each for each in judged}.values()))  # parts are one run
    found += of_run(record, worth, f"hetero-hvd report {shlex.quote(str(newest))}").advice
    unknown = [finding.words for finding in findings if not finding.is_complete]
    return Advised(
        advice=ranked(found, worth),
        not_judged=(*unknown, *not_judged),
    )


def beyond_the_verdict(record: Record, costs: Costs, folder: Path) -> list[str]:
    """What is advised of one run that its verdict does not say, a line for each."""
    found, _ = _of_nodes(record, costs, folder, WORTH_RATIO)
    return [str(advice) for advice in ranked(found)]


def _of_nodes(
    record: Record, costs: Costs, folder: Path, worth_ratio: float
) -> tuple[list[Advice], list[str]]:
    """Which nodes to leave out, and what could not be judged of that."""
    run = _measured(record, costs)
    if run is None:
        return [], ["other sets of nodes: no membership was recorded"]
    command = _command(folder, is_running=record.is_held)
    if (trial := kept_trial(folder, run.joined)) is not None:
        source = f"the trial of {trial.run}"
        found = measured_placements(
            trial.trial.placements,
            run.nodes,
            source=source,
            worth_ratio=worth_ratio,
            command=command,
        )
        return list(found), list(_unpriced(run))
    if run.problem:
        return [], [f"other sets of nodes: {run.problem}"]
    return list(placements(run, worth_ratio=worth_ratio, command=command)), list(_unpriced(run))


def in_words(said: Advised) -> Iterator[str]:
    """Lines for people."""
    if not said.advice:
        yield NOTHING
    for number, advice in enumerate(said.advice, 1):
        yield f"{number}. {advice}"
        yield from (f"   as      {line}" for line in advice.evidence)
        if not advice.gains:
            yield "   gain    not known"
        yield from (f"   unknown {line}" for line in advice.unknown)
        if advice.command:
            yield f"   try     {advice.command}"
        if advice.id:
            yield f"   id      {advice.id}"
    yield from (f"seen: {line}" for line in said.seen)
    yield from (f"not judged: {line}" for line in said.not_judged)
    if said.declined:
        yield f"not told, as declined: {', '.join(said.declined)}"


def _measured(record: Record, costs: Costs) -> MeasuredJob | None:
    joined, times, since = share_times(record)
    if joined is None:
        return None
    watts = {used.node: used.mean_watts for used in costs.run.energy}
    return MeasuredJob(
        joined=joined,
        times=times,
        exposed_seconds=exposed_seconds(record),
        prices=costs.newest_prices,
        watts={node: value for node, value in watts.items() if math.isfinite(value)},
        since=since,
        samples_per_second=_lately(record, {str(worker) for worker in joined.workers}),
    )


def _lately(record: Record, members: set[str]) -> float:
    """Samples per second of all members in the newer half of the intervals that all were in."""
    intervals = intervals_of(record.rollups)
    times = [at for at, rows in intervals.items() if {row["worker"] for row in rows} == members]
    newer = sorted(times)[len(times) // 2 :]
    return throughput([row for at in newer for row in intervals[at]])


def _command(folder: Path, *, is_running: bool) -> str:
    """How to leave out a node of a run that goes on; of one that has ended, what it would cost."""
    run = shlex.quote(str(folder)).replace("{", "{{").replace("}", "}}")
    if is_running:
        return f"hetero-hvd drain {{node}} {run}"
    return f"hetero-hvd cost {run} --without {{node}}"


def _unpriced(run: MeasuredJob) -> Iterator[str]:
    """What is not known of money and energy."""
    for what, known in (("money", run.prices), ("energy", run.watts)):
        missing = [node for node in run.nodes if node not in known]
        why = "price_per_hour" if what == "money" else "power was measured"
        if missing:
            yield f"{what}: no {why} of {', '.join(missing)}"


def _judgement(folder: Path, record: Record) -> Judgement:
    facts, joined = facts_of(record), newest_members(record)
    nodes = {row["worker"].rpartition(":")[0] for row in record.rollups}
    nodes |= {worker.node for worker in (joined.workers if joined else ())}
    _, seconds = trained(record.rollups)
    return Judgement(
        name=facts.run_id or str(folder),
        nodes=frozenset(nodes),
        seconds=seconds or math.nan,
        findings=facts.findings,
    )
