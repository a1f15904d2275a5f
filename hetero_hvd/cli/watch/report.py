"""`hetero-hvd report`: what limited a run, and what to do next."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_hvd.cli.lines import add_json, refuse_together, show, show_json
from hetero_hvd.cli.watch.run_argument import add_run
from hetero_hvd.config.paths import some_path
from hetero_hvd.errors import UserError

if TYPE_CHECKING:
    from hetero_hvd.run.records.reader import Record
    from hetero_hvd.run.reports.facts import RunFacts

MAX_DRAWN_FRAMES = 20_000
"""Of a recording with more, means of ten seconds are drawn; so many are five hours and a half of a
node at a sample per second."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_run(command)
    add_json(command, "; unmeasured is null")
    command.add_argument(
        "--at",
        metavar="TIME",
        help="only what was so then, and why: 14:05 (the last one in the run) or 2026-11-25T14:05, "
        "in UTC as `hetero-hvd runs` shows times; 2026-11-25T14:05+02:00; or 10m before its end",
    )
    command.add_argument(
        "--html", type=some_path, metavar="PATH", help="write one page with interactive plots"
    )
    command.add_argument(
        "--plot", type=some_path, metavar="PATH", help="write the plots: .png, .pdf or .svg"
    )


def act(arguments: argparse.Namespace) -> int:
    """Print the report."""
    from hetero_hvd.run.recordings.frames import is_recording  # noqa: PLC0415
    from hetero_hvd.run.records.parts import read_run  # noqa: PLC0415
    from hetero_hvd.run.reports.advice import beyond_the_verdict  # noqa: PLC0415
    from hetero_hvd.run.reports.costs import costs_of  # noqa: PLC0415
    from hetero_hvd.run.reports.costs import in_words as costs_in_words  # noqa: PLC0415
    from hetero_hvd.run.reports.facts import facts_of  # noqa: PLC0415
    from hetero_hvd.run.reports.nccl import in_words as nccl_in_words  # noqa: PLC0415
    from hetero_hvd.run.reports.nccl import nccl_of  # noqa: PLC0415
    from hetero_hvd.run.reports.phases import in_words, phases_of  # noqa: PLC0415
    from hetero_hvd.run.reports.quality import curves_of, quality_lines  # noqa: PLC0415

    _check(arguments)
    if arguments.html is not None or arguments.plot is not None:
        _draw(arguments.run, html=arguments.html, plot=arguments.plot)
        return 0
    if is_recording(arguments.run):
        _show_recording(arguments.run, as_json=arguments.json)
        return 0
    record = read_run(arguments.run)
    if arguments.at is not None:
        _show_moment(record, arguments.at)
        return 0
    facts, workers, costs = facts_of(record), phases_of(record), costs_of(record)
    advice = beyond_the_verdict(record, costs, arguments.run)
    if arguments.json:
        content = asdict(facts) | {"phases": list(map(asdict, workers))}
        content |= {"costs": costs.as_dict(), "nccl": nccl_of(arguments.run), "advice": advice}
        content |= {"curves": curves_of(record), "achieved": list(quality_lines(record))}
        show_json(content)
        return 0
    speed = facts.samples_per_second
    for line in _heading(facts, arguments.run):
        show(line)
    for line in quality_lines(record):
        show(f"  {line}")
    show(f"  {f'{speed:.0f} samples/s' if speed > 0 else 'speed not measured'}")
    for finding in facts.findings:
        show(f"  {finding}")
    for line in (*(f"advice: {words}" for words in advice), *costs_in_words(costs)):
        show(f"  {line}")
    for line in (*in_words(workers, record), *nccl_in_words(arguments.run)):
        show(line)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """No option is left unheeded.

    Raises:
        UserError: One would be.
    """
    from hetero_hvd.run.recordings.frames import is_recording  # noqa: PLC0415 - as above

    refuse_together(arguments, "at", "json", "html")
    refuse_together(arguments, "at", "json", "plot")
    if arguments.at is not None and is_recording(arguments.run):
        raise UserError(f"--at: {arguments.run} is a recording, which has no steps; name a run")


def _heading(facts: RunFacts, folder: Path) -> Iterator[str]:
    """Which run it is, how it stands, and what its user says of it."""
    yield f"run {facts.run_id or folder.name}: {facts.state}"
    labels = [facts.name, *(f"{name}={value}" for name, value in facts.tags.items())]
    if any(labels):
        yield f"  {'  '.join(filter(None, labels))}"


def _show_moment(record: Record, text: str) -> None:
    from hetero_hvd.cli.record.times import moment_of  # noqa: PLC0415 - seldom
    from hetero_hvd.run.reports.facts import facts_of  # noqa: PLC0415
    from hetero_hvd.run.reports.moment import said_of  # noqa: PLC0415 - only this

    last_seconds = facts_of(record).heard_at
    if math.isnan(last_seconds):
        raise UserError("--at: nothing was recorded of this run")
    for line in said_of(record, moment_of("--at", text, last_seconds)):
        show(line)


def _show_recording(folder: Path, *, as_json: bool) -> None:
    import msgspec  # noqa: PLC0415 - only this command needs it

    from hetero_hvd.run.recordings.device_report import in_words, summaries_of  # noqa: PLC0415
    from hetero_hvd.run.recordings.folder import read_facts  # noqa: PLC0415 - only recordings

    facts, summaries = read_facts(folder), summaries_of(folder)
    if as_json:
        content = msgspec.to_builtins(facts) | {"devices": msgspec.to_builtins(summaries)}
        show_json(content)
        return
    seconds = facts.until_unix_seconds - facts.from_unix_seconds
    show(f"recording {facts.name}: {seconds:.0f} s")
    show(f"  {facts.num_frames} samples, {facts.num_missing} missing")
    for line in in_words(facts, summaries):
        show(line)


def _draw(run: Path, *, html: Path | None, plot: Path | None) -> None:
    from hetero_hvd.run.recordings.frames import is_recording  # noqa: PLC0415 - only this command
    from hetero_hvd.run.reports.series import report_of  # noqa: PLC0415

    if is_recording(run):
        _draw_recording(run, html=html, plot=plot)
        return
    report = report_of(run)
    if html is not None:
        from hetero_hvd.run.reports.html import write_page  # noqa: PLC0415

        write_page(report, html)
        show(f"page: {html}")
    if plot is not None:
        from hetero_hvd.run.reports.plots import draw  # noqa: PLC0415 - matplotlib is an extra

        draw(report.plots, f"{report.name or report.run_id}: {report.state}", plot)
        show(f"plot: {plot}")


def _draw_recording(run: Path, *, html: Path | None, plot: Path | None) -> None:
    from hetero_hvd.run.recordings.folder import read_facts  # noqa: PLC0415 - only recordings
    from hetero_hvd.run.records.reader import read_record  # noqa: PLC0415
    from hetero_hvd.run.reports.plots import PLOTTED, draw_recording  # noqa: PLC0415

    if html is not None:
        raise UserError("--html: a recording has no page of its own; give --plot PATH")
    if plot is not None:
        facts = read_facts(run)
        is_short = facts.num_frames <= MAX_DRAWN_FRAMES
        rows = _rows_of_frames(run) if is_short else read_record(run, sampled=PLOTTED).samples
        draw_recording(facts, rows, plot)
        show(f"plot: {plot}")


def _rows_of_frames(run: Path) -> Iterator[dict[str, Any]]:
    from hetero_hvd.messages import NodeSampled  # noqa: PLC0415 - only recordings
    from hetero_hvd.run.recordings.frames import read_frames  # noqa: PLC0415
    from hetero_hvd.run.records.samples import rows_of  # noqa: PLC0415

    for frame in read_frames(run):
        if isinstance(sample := frame.sample, NodeSampled):
            yield from rows_of(frame.node, frame.at_unix_seconds, sample)
