"""How a run begins and ends in its record, whoever leads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from hetero_hvd.config import JOB_SETTINGS, JobConfig
from hetero_hvd.errors import JobError
from hetero_hvd.messages import RunEnded, RunStarted
from hetero_hvd.messages.launch import SWITCHES
from hetero_hvd.run.event_bus import EventBus
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.reports.costs import Costs, costs_of
from hetero_hvd.run.reports.html import write_report
from hetero_hvd.run.sinks.sink import shown
from hetero_hvd.run.tracking.final_report import as_dict
from hetero_hvd.run.tracking.run_tracker import RunTracker
from hetero_hvd.whole_file import write_whole


class RunLabels(NamedTuple):
    """What a user says of a run.

    Attributes:
        name: What it is called; empty if not at all.
        tags: What was tried, by name.
    """

    name: str = ""
    tags: Mapping[str, str] = MappingProxyType({})


UNLABELLED = RunLabels()


def run_started(
    run_id: str,
    labels: RunLabels,
    *,
    command: tuple[str, ...],
    origin: Mapping[str, str],
    nodes: Iterable[str],
    job: JobConfig,
) -> RunStarted:
    """The first event of a run.

    Args:
        run_id: Of this run and no other.
        labels: What its user says of it.
        command: The user's command.
        origin: What the script was and what it stands on; see `records.origin`.
        nodes: Names of the nodes.
        job: The settings.
    """
    return RunStarted(
        run_id=run_id,
        name=labels.name,
        tags=dict(labels.tags),
        origin=dict(origin),
        command=command,
        nodes=tuple(nodes),
        settings=recorded_settings(job),
    )


def recorded_settings(job: JobConfig) -> dict[str, str]:
    """The settings as text; the training mode by its name alone, however it was asked for."""
    found = {s.name: str(getattr(job, s.name)) for s in JOB_SETTINGS if s.name not in SWITCHES}
    return found | {"mode": job.training_mode, "export": " ".join(map(shown, job.export))}


def publish_end(tracker: RunTracker, bus: EventBus, *, exit_code: int, reason: str) -> None:
    """Tell the bus what has limited the whole run, and that it is over.

    Args:
        tracker: Of the run; its summary gets the verdict.
        bus: Of the run.
        exit_code: Of the job.
        reason: In words.
    """
    tracker.summary.findings = tracker.diagnosis.tell(of_whole_run=True)
    bus.publish(RunEnded(exit_code=exit_code, reason=reason))


def write_summary(
    folder: Path,
    tracker: RunTracker,
    *,
    exit_code: int,
    reason: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write summary.json; gives what is in it.

    Args:
        folder: Of the run.
        tracker: Of the run.
        exit_code: Of the job.
        reason: Why it ended, without secrets.
        say: Tells people of what cannot be written.
    """
    costs = _costs(folder, say)
    facts = as_dict(tracker.summary, exit_code=exit_code, reason=reason, costs=costs)
    content = msgspec.json.format(msgspec.json.encode(facts)) + b"\n"  # writes NaN as null
    try:
        write_whole(folder / "summary.json", content)
    except OSError as error:
        say(f"summary.json cannot be written: {error.strerror or error}")
    return facts


def try_report(folder: Path, say: Callable[[str], None]) -> None:
    """Write report.html, or say why that cannot be."""
    try:
        write_report(folder)
    except JobError as error:
        say(f"report.html cannot be written: {error}")


def _costs(folder: Path, say: Callable[[str], None]) -> Costs | None:
    """Of the whole run, an earlier part of it in the same folder included."""
    try:
        return costs_of(read_run(folder))
    except JobError as error:
        say(f"what the run cost is not known: {error}")
        return None
