"""`hetero-hvd simulate --queue`: replays of generated traces and of files."""

from __future__ import annotations

import json
import time

import pytest

from hetero_hvd.cli import main
from hetero_hvd.core.simulation.queues.queue_policies import QUEUE_POLICIES

TRACE = "job,submit_seconds,work,max_devices,rate:v100,rate:p100,rate:k80\n"
FEW = ["--jobs", "20", "--seeds", "2"]


def test_ours_is_better_than_its_goals(capsys):
    """Of the mean completion: 0.6 of the best elastic one and 0.25 of FIFO with backfill."""
    words = ["--policy", "backfill,backfill-one-kind,sia,ours", "--seeds", "2", "--json"]
    assert main(["simulate", "--queue", "generated", *words]) == 0
    found = {row["policy"]: row["mean_hours"] for row in json.loads(capsys.readouterr().out)}
    assert found["ours"] <= 0.6 * found["sia"]
    assert found["ours"] <= 0.25 * min(found["backfill"], found["backfill-one-kind"])


def test_every_policy_does_all_jobs_and_draws_them(capsys, tmp_path):
    """A line for each, and a picture."""
    plot = tmp_path / "queue.svg"
    words = ["--policy", "all", "--communication", "--plot", str(plot)]
    assert main(["simulate", "--queue", "generated", *FEW, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(QUEUE_POLICIES)
    assert plot.read_text().startswith("<?xml")


def test_a_trace_of_one_job_takes_as_long_as_it_must(capsys, tmp_path):
    """The start of its device, and its work at its rate."""
    path = tmp_path / "trace.csv"
    path.write_text(TRACE + "a,10,7200,1,2.0,1.0,1.0\n")
    words = ["--policy", "all", "--json", "--start-seconds", "60"]
    assert main(["simulate", "--queue", str(path), *words]) == 0
    for row in json.loads(capsys.readouterr().out):
        assert row["mean_hours"] == pytest.approx(3660 / 3600), row["policy"]
        assert row["joining_device_hours"] == pytest.approx(60 / 3600)
        assert row["fairness"] == 1.0


def test_a_start_that_takes_longer_costs_more(capsys):
    """It is charged to whom changes most."""
    hours = []
    for seconds in ("5", "60"):
        words = ["--policy", "ours", "--json", "--start-seconds", seconds]
        assert main(["simulate", "--queue", "generated", *FEW, *words]) == 0
        hours.append(json.loads(capsys.readouterr().out)[0]["mean_hours"])
    assert hours[0] < hours[1]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--queue", "nowhere.csv"], "nowhere.csv: No such file"),
        (["--queue", "generated", "--policy", "best"], "--policy: found 'best', must be of fifo"),
        (["--queue", "generated", "--devices", "v100"], "--devices: found 'v100', must be"),
        (["--queue", "generated", "--devices", "t4=2"], "v100, p100 and k80 only"),
        (["--queue", "generated", "--start-seconds", "nan"], "--start-seconds: found nan"),
        (["--queue", "generated", "--jobs", "0"], "--jobs: found 0, must be from 1"),
        (["--queue", "generated", "--users", "0"], "--users"),
        (["--queue", "generated", "--gap-hours", "inf"], "--gap-hours"),
        (["--queue", "generated", "--growth", "0.5"], "--growth"),
        (["--queue", "generated", "--seeds", "0"], "--seeds"),
        (["--queue", "generated", *FEW, "--policy", "fifo", "--plot", "a.xyz"], "a.xyz"),
    ],
)
def test_wrong_input_is_one_line(capsys, words, named):
    """It names the flag; exit code 2."""
    assert main(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


@pytest.mark.matrix
def test_ten_thousand_jobs_of_a_hundred_users_take_less_than_a_minute(capsys):
    """Of processor time, with eight devices; a plan's cost grows with n log n."""
    words = ["--jobs", "10000", "--users", "100", "--seeds", "1", "--policy", "ours", "--json"]
    begin = time.process_time()
    assert main(["simulate", "--queue", "generated", *words]) == 0
    assert time.process_time() - begin < 60
    assert json.loads(capsys.readouterr().out)[0]["makespan_hours"] > 1e4
