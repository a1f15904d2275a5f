"""What a run's page reads from the disk."""

import asyncio
import shutil

import pytest

from hetero_hvd.core.view.plots.bounded_series import PlotRange
from hetero_hvd.core.view.plots.run_plots import RunPlots
from hetero_hvd.errors import UserError
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.web import recorded
from tests.run.records.test_logged import told
from tests.run.records.test_records import JOINED, write

NAMES = {"a": "same", "b": "same"}


def test_of_many_runs_the_newest_are_listed(tmp_path, monkeypatch):
    """Whatever their folders are called; one without a start is older than all."""
    monkeypatch.setattr(recorded, "MAX_RUNS", 3)
    for began, name in enumerate(("z", "y", "a", "b", "x")):
        (tmp_path / name).mkdir()
        recorder = Recorder(tmp_path / name)
        started = RunStarted(
            run_id=name, name=NAMES.get(name, ""), command=("x",), nodes=(), settings={}
        )
        recorder.observe(float(began + 1), started)
        recorder.close()
    (tmp_path / "zz").mkdir()
    (tmp_path / "zz" / "run.sqlite").write_bytes(b"nothing of the kind")
    found = recorded.runs_beside(tmp_path / "a")
    assert [(run.folder, run.label, run.is_this) for run in found] == [
        ("x", "x", False),
        ("b", "same (b)", False),
        ("a", "same (a)", True),
    ]


@pytest.mark.parametrize("damage", ["from the first", "later", "gone"])
def test_a_run_that_cannot_be_read_takes_no_other_from_the_plots(tmp_path, monkeypatch, damage):
    """It is left out, which is said; what is no run is a mistake of who asks."""
    monkeypatch.setattr(recorded, "ADVICE_SECONDS", 0.0)
    for name in ("own", "a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, JOINED, told(5, x=1.0))
        TimingLog(tmp_path / name).close()
    beside = recorded.PlotsBeside(tmp_path / "own")
    wanted = PlotRange("step", None, None, 500)

    def asked():
        own = ("", RunPlots().view(wanted, ()))
        view = asyncio.run(beside.overlaid(own, ["a", "b"], wanted))
        return {line.label for plot in view.plots for line in plot.lines}, view.left_out

    if damage != "from the first":
        assert asked() == ({"own", "a", "b"}, [])
    if damage == "gone":
        shutil.rmtree(tmp_path / "a")
        with pytest.raises(UserError, match="'a' is no folder of another run"):
            asked()
        return
    (tmp_path / "a" / "run.sqlite").write_bytes(b"nothing of the kind" * 100)
    labels, (said,) = asked()
    assert labels == {"own", "b"}
    assert said.startswith("a is left out: ")
    assert "run.sqlite cannot be read" in said
