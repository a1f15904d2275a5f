"""The plots of a run are a fold over its events, bounded whatever it does."""

from __future__ import annotations

import dataclasses
import time

import msgspec
import pytest
from msgspec.structs import replace

from hetero_hvd.core.step_table import StepTable, with_tables
from hetero_hvd.core.view.plots.bounded_series import PlotRange
from hetero_hvd.core.view.plots.run_plots import (
    FEW_WORKERS,
    GROUPS,
    MAX_CURVES,
    MAX_MARKS,
    MAX_VALUES,
    MIN_INTERVALS,
    RunPlots,
)
from hetero_hvd.messages import (
    Crashed,
    Evaluated,
    Logged,
    LoggedValue,
    StallReported,
    WorkerId,
)
from tests.kit.screens.shown_run import LOST, SLOW, STEPS_PER_EXCHANGE, history, planned


def plots_of(events):
    """Folded."""
    plots = RunPlots()
    for at_seconds, event in with_tables(events):
        plots.observe(at_seconds, event)
    return plots


def test_there_is_a_plot_of_all_that_was_told():
    """Loss, evaluations and rates first; a phase of each of few workers."""
    view = plots_of(history(1e9)).view(PlotRange(num_intervals=300))
    assert [plot.key for plot in view.plots] == [
        "loss loss", "evaluation accuracy", "learning rate learning_rate", "speed", "shares", "own",
        "phases alpha:0", "phases beta:0", "phases gamma:0",
    ]  # fmt: skip
    assert [plot.is_stacked for plot in view.plots] == [False] * 6 + [True] * 3
    for plot in view.plots:
        assert len({len(plot.steps), *(len(line.values) for line in plot.lines)}) == 1
        assert len(plot.steps) == len(plot.at_unix_seconds) <= 602
    kinds = [mark.kind for mark in view.marks]
    assert [kind for kind in kinds if kind != "plan"] == [
        "reset",
        "straggler",
        "straggler",
        "reset",
    ]
    assert sum(mark.count for mark in view.marks if mark.kind == "plan") == 12
    assert kinds.count("plan") < 12


def test_many_workers_share_the_points_of_a_plot():
    """And the phases of one are shown, of whom is asked for."""
    nodes = tuple(f"n{number:02}" for number in range(64))
    plots = plots_of(history(1e9, nodes=nodes))
    view = plots.view(PlotRange(num_intervals=2000))
    assert len(nodes) > FEW_WORKERS
    phases = [plot.title for plot in view.plots if plot.is_stacked]
    assert phases == ["Phases of n00:0"]
    for plot in view.plots:
        most = max(MAX_VALUES, 2 * MIN_INTERVALS * len(plot.lines))
        assert sum(len(line.values) for line in plot.lines) <= most + 2 * len(plot.lines)
    asked = plots.view(PlotRange(), ["n07:0", "nobody:0"])
    assert [plot.title for plot in asked.plots if plot.is_stacked] == ["Phases of n07:0"]
    assert len(msgspec.json.encode(view)) < 300_000


def test_a_closer_look_has_its_own_points_and_marks():
    """Of the range only, over steps or time."""
    plots = plots_of(history(1e9))
    first, last = STEPS_PER_EXCHANGE * (SLOW - 10), STEPS_PER_EXCHANGE * (SLOW + 10)
    view = plots.view(PlotRange("step", first, last, 500))
    assert [mark.kind for mark in view.marks] == ["straggler"]
    (speed,) = (plot for plot in view.plots if plot.key == "speed")
    assert first - 20 <= speed.steps[0] < speed.steps[-1] <= last + 20
    times = plots.view(PlotRange("time", 1e9 - 240 + LOST - 1, None, 500))
    assert [mark.kind for mark in times.marks] == ["reset"]


def test_plans_that_nobody_can_tell_apart_are_one():
    """However many there are; what else happened is never left out."""
    workers = (WorkerId("a", 0), WorkerId("b", 0))
    events = [(float(n), planned(workers, (100, 50), n, n % 2)) for n in range(2 * MAX_MARKS)]
    events[1:1] = [(0.5, Crashed(worker=workers[0], error="x", traceback="", user_error=False))] * 5
    events.append((1e4, StallReported(step=3, is_stalled=True, seconds=9.0)))
    marks = plots_of(events).view(PlotRange()).marks
    plans = [mark.count for mark in marks if mark.kind == "plan"]
    assert sum(plans) == MAX_MARKS  # the newest
    assert len(plans) <= GROUPS + 8
    assert [mark.kind for mark in marks].count("fault") == 5


def test_a_script_that_logs_without_end_is_bounded():
    """So many names have a plot; the others have none."""
    names = {f"metric {number}": 1.0 for number in range(3 * MAX_CURVES)}
    value = LoggedValue(step=5, count=1, mean=1.0, minimum=1.0, maximum=1.0, last=1.0)
    events = [
        (1.0, Logged(step=5, epoch=0, values=dict.fromkeys(names, value))),
        (2.0, Evaluated(epoch=0, step=5, metrics={"accuracy": 1.0} | names)),
    ]
    keys = [plot.key for plot in plots_of(events).view(PlotRange()).plots]
    for kind in ("evaluation", "logged"):
        assert sum(key.startswith(kind) for key in keys) == MAX_CURVES
    assert "evaluation accuracy" in keys


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_million_steps_of_64_workers_stay_small_and_fast():
    """What a page asks for every few seconds; figures for who asks."""
    nodes = tuple(f"n{number:02}" for number in range(64))
    plots, num_exchanges = RunPlots(), 20_000
    tables = list(with_tables(history(1e9, nodes=nodes, num_exchanges=40)))
    (table,) = [event for _, event in tables if isinstance(event, StepTable)][-1:]
    began = time.process_time()
    for number in range(num_exchanges):
        event = replace(table.event, step=50 * (number + 1))
        plots.observe(float(number), dataclasses.replace(table, event=event))
    fold_seconds = (time.process_time() - began) / num_exchanges
    began = time.process_time()
    view = plots.view(PlotRange(num_intervals=3840))
    answer = msgspec.json.encode(view)
    answer_seconds = time.process_time() - began
    print(  # noqa: T201 - for who asks
        f"{view.last_step} steps of {len(nodes)} workers: {1e6 * fold_seconds:.0f} us an exchange, "
        f"{len(answer) / 1e3:.0f} kB in {1e3 * answer_seconds:.0f} ms"
    )
    assert view.last_step == 50 * num_exchanges
    assert len(answer) < 500_000
    assert answer_seconds < 1.0
