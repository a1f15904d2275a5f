"""A run's plots: the series behind them, the page in a browser, and pictures."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.errors import JobError
from hetero_hvd.messages import BatchPlan, Finding, Judged, RunStarted, StragglerReported
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.reports.series import MAX_POINTS, lines_of, report_of
from tests.run.records.test_records import ALPHA, BETA, JOINED, timed, timing, write

EVIL = "</script><b>not markup</b>"


def plan(from_step, *shares):
    """A plan for both workers."""
    return BatchPlan(
        rendezvous_id=1,
        plan_id=from_step,
        from_step=from_step,
        exchange_steps=1,
        workers=(ALPHA, BETA),
        local_batch_sizes=shares,
        reason="faster",
    )


@pytest.fixture(name="run")
def recorded_run(tmp_path):
    """Two workers, 1200 exchanges; somebody gets slow and the shares change."""
    folder = tmp_path / "run"
    folder.mkdir()
    log = TimingLog(folder)
    log.write(0.0, JOINED)
    for number in range(1, 1201):
        log.write(float(number), timed(10 * number, timing(8), timing(4, data=0.2)))
    log.close()
    found = Finding(kind="input", is_complete=True, words=f"bound by input {EVIL}")
    slow = StragglerReported(step=90, worker=BETA, is_slow=True, speed_ratio=0.5, cause="input")
    started = RunStarted(run_id="demo", command=("x",), nodes=("alpha",), settings={})
    judged = Judged(step=11_990, findings=(found,))
    rows = timing(8), timing(4, data=0.2)
    timings = (JOINED, timed(9, *rows), timed(19, *rows), timed(29, *rows))
    plans = (plan(90, 9, 3), plan(100, 9, 3))
    measured = msgspec.structs.replace(plan(0, 6, 6), calibration_ratio=0.125)  # no step has it
    write(folder, started, *timings, measured, plan(0, 8, 4), slow, *plans, judged)
    return folder


def test_plots_are_bounded_and_lack_nothing(run):
    """However many exchanges: few points, which lack nothing; marks where something changed."""
    plots = report_of(run).plots
    (speed,) = lines_of(plots, "speed").values()
    assert 0.5 * MAX_POINTS < len(speed.steps) <= 2 * MAX_POINTS + 2
    assert speed.steps[-1] == plots.last_step == 12_000
    assert speed.values == pytest.approx([12 / 0.29] * len(speed.steps))
    assert set(lines_of(plots, "shares")["alpha:0"].values) == {8.0}
    waits = lines_of(plots, "phases beta:0")["data wait"].values
    assert waits == pytest.approx([200.0] * len(waits))
    kinds = [(mark.step, mark.kind) for mark in plots.marks]
    assert kinds == [(0, "reset"), (0, "plan"), (90, "straggler"), (90, "plan")]


def test_an_empty_run_has_empty_plots(tmp_path):
    """One that was killed before its first exchange is shown as such."""
    TimingLog(tmp_path).close()
    write(tmp_path, JOINED)
    report = report_of(tmp_path)
    assert (report.plots.last_step, report.samples_per_second) == (None, None)
    assert [plot.steps for plot in report.plots.plots] == [[]] * 4


def test_the_page_is_whole_and_holds_no_markup_of_the_run(run, tmp_path):
    """One file, nothing from elsewhere, and what a run says cannot end the script."""
    assert main(["report", str(run), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert EVIL not in page
    own = r"www\.w3\.org/2000/svg|github\.com/leeoniya/uPlot"
    assert re.findall(rf"(?:src|href)=|@import|https?://(?!{own})", page) == []
    assert "Permission is hereby granted" in page  # of uPlot
    assert main(["report", str(run), "--html", str(tmp_path / "no" / "page.html")]) == 2


LOCALES = [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}]


@pytest.mark.parametrize("locale", LOCALES, ids=["ASCII", "UTF-8"])
@pytest.mark.parametrize("more", [(), ("--json",), ("--html", "page.html")], ids=str)
def test_what_a_run_is_called_is_told_in_every_locale(tmp_path, locale, more):
    """What its letters do not suffice for is told in escapes; a page is always UTF-8."""
    run = tmp_path / "run"
    run.mkdir()
    TimingLog(run).close()
    tags = {"größe": "大"}
    write(run, RunStarted(run_id="größe-0", command=(), nodes=(), settings={}, tags=tags))
    done = subprocess.run(
        [sys.executable, "-m", "hetero_hvd", "report", str(run), *more],
        env={**os.environ, **locale},
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    if "--html" in more:
        assert "größe" in (tmp_path / "page.html").read_text(encoding="utf-8")
    else:
        assert (b"\\xf6" in done.stdout) == ("PYTHONUTF8" in locale)


def test_pictures_are_written(run, tmp_path):
    """In the format that the suffix asks for; another one is a clear error."""
    pytest.importorskip("matplotlib")
    for suffix, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        path = tmp_path / f"run.{suffix}"
        assert main(["report", str(run), "--plot", str(path)]) == 0
        assert path.read_bytes().startswith(magic)
    assert b"/Type42" not in (pdf := (tmp_path / "run.pdf").read_bytes())
    assert (b"/CIDFontType2" in pdf, b"/Type3" in pdf) == (True, False)
    assert main(["report", str(run), "--plot", str(tmp_path / "run.doc")]) == 2


def test_segments_are_rotated_and_read_as_one(tmp_path):
    """Each segment can be read alone; the oldest are removed; a torn tail is cut."""
    log = TimingLog(tmp_path, segment_bytes=4000)
    log.write(1.0, JOINED)
    for number in range(1, 101):
        log.write(1.0 + number, timed(number, timing(8), timing(4)))
    log.close()
    files = sorted(tmp_path.glob("timings*.jsonl"))
    assert len(files) == 4
    assert max(file.stat().st_size for file in files) < 6000
    for file in files:
        assert b'"WorkersJoined"' in file.read_bytes().splitlines()[0]
    with (tmp_path / "timings.jsonl").open("ab") as torn:
        torn.write(b'{"at_unix_seconds":9.0,"ty')
    write(tmp_path, JOINED)
    (speed,) = (plot for plot in report_of(tmp_path).plots.plots if plot.key == "speed")
    assert speed.steps[-1] == 100
    assert speed.at_unix_seconds[-1] == 101.0
    assert speed.steps == list(range(speed.steps[0], 101))


def test_a_line_that_is_no_timing_is_named(tmp_path):
    """File and line."""
    (tmp_path / "timings.jsonl").write_bytes(msgspec.json.encode(plan(0, 8, 4)) + b"\n")
    write(tmp_path, JOINED)
    with pytest.raises(JobError, match=r"timings\.jsonl:1: is no timing"):
        report_of(tmp_path)
