"""A run's curves: from its record, without what was done again, few points, and in words."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from hetero_hvd.cli import main
from hetero_hvd.messages import CheckpointWritten, Evaluated, Logged, LoggedValue, StateDivided
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.reports.quality import curves_of, quality_lines
from hetero_hvd.run.reports.series import report_of
from tests.run.records.test_logged import told
from tests.run.records.test_records import JOINED, write
from tests.run.reports.test_series import recorded_run  # noqa: F401 - a fixture


def evaluated(step, **metrics):
    """By the script."""
    return Evaluated(epoch=0, step=step, metrics=metrics)


def saved(step, *, is_best=False):
    """A checkpoint."""
    return CheckpointWritten(step=step, path=f"/c/{step}", num_bytes=1, metrics={}, is_best=is_best)


def test_each_number_has_a_curve_of_its_own(tmp_path):
    """Loss first, evaluations, learning rates, then what the script logs; with their steps."""
    write(
        tmp_path,
        JOINED,
        told(5, loss=0.5, learning_rate=0.1, norm=2.0),
        evaluated(10, accuracy=0.25),
        evaluated(20, accuracy=math.nan),
    )
    found = curves_of(read_record(tmp_path))
    assert [(curve.kind, curve.name) for curve in found] == [
        ("loss", "loss"),
        ("evaluation", "accuracy"),
        ("learning rate", "learning_rate"),
        ("logged", "norm"),
    ]
    assert (found[1].steps, found[1].values) == ([10, 20], [0.25, None])


def test_what_was_done_again_counts(tmp_path):
    """All were lost and began anew from a checkpoint of step 10."""
    again = replace(JOINED, rendezvous_id=2, applied_steps=10)
    events = [evaluated(10, a=1.0), evaluated(20, a=2.0), again, evaluated(20, a=3.0)]
    write(tmp_path, JOINED, *events)
    (curve,) = curves_of(read_record(tmp_path))
    assert (curve.steps, curve.values) == ([10, 20], [1.0, 3.0])


def test_many_points_become_few(tmp_path):
    """Neighbours are averaged; the last step stays."""
    write(tmp_path, *(told(step, x=float(step % 2)) for step in range(1, 1001)))
    (curve,) = curves_of(read_record(tmp_path), max_points=100)
    assert 50 <= len(curve.steps) == len(curve.values) <= 100
    assert all(0.0 <= value <= 1.0 for value in curve.values)
    assert sum(curve.values) / len(curve.values) == pytest.approx(0.5, abs=0.05)
    assert curve.steps[-1] == 1000


def test_the_report_says_how_good_it_was(tmp_path, capsys):
    """The last of each, the extremes of evaluations, checkpoints, and who has the state now."""
    events = [evaluated(step, accuracy=a) for step, a in ((10, 0.5), (20, 0.9), (30, 0.7))]
    saves = saved(20, is_best=True), saved(30)
    parts = [StateDivided(step=n, words=f"in parts, {n}", is_short=False) for n in (0, 9)]
    write(tmp_path, JOINED, *events, told(30, loss=0.25), *saves, *parts)
    lines = list(quality_lines(read_record(tmp_path)))
    assert lines == [
        "loss 0.25 at step 30",
        "accuracy 0.7 at step 30 (of 3 evaluations 0.5 at step 10 is least, 0.9 at step 20 most)",
        "newest checkpoint: step 30, /c/30",
        "best checkpoint: step 20, /c/20",
        "since step 9: in parts, 9",
    ]
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(line in printed for line in lines)


def test_the_report_tells_the_last_value_not_the_mean_of_its_second(tmp_path):
    """It stands beside that value's step; what was lost with a worker is not the last."""
    ten = LoggedValue(step=10, count=10, mean=5.5, minimum=1.0, maximum=10.0, last=10.0)
    log = Logged(step=10, epoch=0, values={"x": ten})
    again = replace(JOINED, rendezvous_id=2, applied_steps=10)
    write(tmp_path, JOINED, log, told(30, x=9.0))
    assert list(quality_lines(read_record(tmp_path))) == ["x 9 at step 30"]
    write(tmp_path, again, log)
    assert list(quality_lines(read_record(tmp_path))) == ["x 10 at step 10"]


def test_the_page_has_the_curves(run):
    """With steps of their own, beside those of the timings."""
    write(run, evaluated(10, accuracy=0.5), told(30, loss=-0.25), saved(30))
    report = report_of(run)
    curves = [plot.title for plot in report.plots.plots[:2]]
    assert curves == ["Loss", "accuracy"]
    assert report.plots.plots[1].steps == [10]
    assert "newest checkpoint: step 30, /c/30" in report.achieved


@pytest.mark.parametrize("words", ["no number", "at step 7"])
def test_what_is_no_number_is_told_as_such(tmp_path, words):
    """Not as zero."""
    write(tmp_path, told(7, x=math.nan))
    (line,) = quality_lines(read_record(tmp_path))
    assert words in line
