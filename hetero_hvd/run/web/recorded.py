"""What a run's page reads from the disk: advice on it, and the runs beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hetero_hvd.core.view.plots.bounded_series import PlotRange
from hetero_hvd.core.view.plots.overlay import overlaid
from hetero_hvd.core.view.plots.run_plots import PlotsView, RunPlots
from hetero_hvd.core.view.run_labels import run_labels
from hetero_hvd.errors import JobError, UserError
from hetero_hvd.run.records.parts import read_run
from hetero_hvd.run.records.reader import newest_start
from hetero_hvd.run.records.run_files import is_locked
from hetero_hvd.run.records.writer import FILE
from hetero_hvd.run.reports.advice import beyond_the_verdict
from hetero_hvd.run.reports.costs import costs_of
from hetero_hvd.run.reports.facts import facts_of
from hetero_hvd.run.reports.series import folded
from hetero_hvd.run.web.source import announced

MAX_RUNS = 100
MAX_OVERLAID = 10
"""Runs in one plot, beside the page's own."""

ADVICE_SECONDS = 60.0
"""So long an advice holds, and the plots of another run: they take reading the whole record."""


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list.

    Attributes:
        folder: Name of its folder.
        label: What it is called in the list; see `run_labels`.
        name: What its user calls it; empty: nothing.
        started_at_unix_seconds: When it began; None: not known.
        is_running: Whether somebody on this machine goes on with it.
        is_this: Whether it is the one that is asked.
        url: Of its page; None: it has none now.
    """

    folder: str
    label: str
    name: str
    started_at_unix_seconds: float | None
    is_running: bool
    is_this: bool
    url: str | None


class RunAdvice:
    """What to change about a run. Used in the loop's thread only.

    Args:
        folder: Of its records.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = asyncio.Lock()
        self._lines: list[str] = []
        self._until_seconds = 0.0

    async def lines(self) -> list[str]:
        """A line for each advice that the verdict does not give; none before the first records."""
        async with self._turn:
            if time.monotonic() >= self._until_seconds:
                self._lines = await asyncio.to_thread(self._read)
                self._until_seconds = time.monotonic() + ADVICE_SECONDS
        return self._lines

    def _read(self) -> list[str]:
        try:
            record = read_run(self._folder)
        except JobError:
            return []
        return beyond_the_verdict(record, costs_of(record), self._folder)


class PlotsBeside:
    """The plots of the runs in the folder that a run is in. Used in the loop's thread only.

    What was read of one holds for `ADVICE_SECONDS`, so that to look closer asks no disk.

    Args:
        folder: Of the run whose page shows them.
    """

    def __init__(self, folder: Path) -> None:
        self._own = folder.absolute()
        self._turn = asyncio.Lock()
        self._read: dict[str, tuple[float, str, RunPlots]] = {}

    async def overlaid(
        self, own: tuple[str, PlotsView], folders: Sequence[str], wanted: PlotRange
    ) -> PlotsView:
        """The plots of this run and of others, a line for each that can be read.

        Args:
            own: What its user calls this run, and its plots.
            folders: Names of the others' folders, which are beside its own.
            wanted: Which part, over steps.

        Raises:
            UserError: They are too many, or one is no run.
        """
        if len(folders) > MAX_OVERLAID:
            raise UserError(f"`with`: at most {MAX_OVERLAID} runs, found {len(folders)}")
        async with self._turn:
            found, left_out = {}, []
            for name in folders:
                try:
                    found[name] = await asyncio.to_thread(self._plots, name)
                except JobError as error:
                    left_out.append(f"{name} is left out: {error}")
            self._read = {name: self._read[name] for name in found}  # memory for these alone
        named = [(own[0], self._own.name), *((called, name) for name, (called, _) in found.items())]
        views = [own[1], *(plots.view(wanted, ()) for _, plots in found.values())]
        plots = overlaid(list(zip(run_labels(named), views, strict=True)), wanted)
        return msgspec.structs.replace(plots, left_out=left_out)

    def _plots(self, name: str) -> tuple[str, RunPlots]:
        until, called, plots = self._read.get(name, (0.0, "", RunPlots()))
        if time.monotonic() >= until:
            folder = self._own.parent / name
            there = {path.parent.name for path in self._own.parent.glob(f"*/{FILE}")}
            if name not in there - {self._own.name}:  # whatever a path might lead to
                raise UserError(f"`with`: {name!r} is no folder of another run")
            record = read_run(folder)
            called, plots = facts_of(record).name, folded(folder, record)
            self._read[name] = time.monotonic() + ADVICE_SECONDS, called, plots
        return called, plots


def runs_beside(folder: Path) -> list[ListedRun]:
    """The newest runs in the folder that this run is in, newest first."""
    own = folder.absolute()
    paths = [file.parent for file in own.parent.glob(f"*/{FILE}")]
    starts = [(newest_start(path), path) for path in paths]
    newest = sorted(starts, key=lambda found: found[0][0] if found[0] else 0.0, reverse=True)
    found = []
    listed = [
        (started, "" if started is None else started[1].name, path)
        for started, path in newest[:MAX_RUNS]
    ]
    labels = run_labels([(name, path.name) for _, name, path in listed])
    for label, (started, name, path) in zip(labels, listed, strict=True):
        page = announced(path)
        found.append(
            ListedRun(
                folder=path.name,
                label=label,
                name=name,
                started_at_unix_seconds=None if started is None else started[0],
                is_running=is_locked(path),
                is_this=path == own,
                url=None if page is None else page.url,
            )
        )
    return found
