"""What a recorded run cost, in every place that tells it."""

from __future__ import annotations

import json
from operator import itemgetter

import msgspec
import pytest

from hetero_hvd.cli import main
from hetero_hvd.core.step_table import with_tables
from hetero_hvd.messages import (
    DeviceSample,
    EpochBegan,
    Evaluated,
    NodeSampled,
    NodesPriced,
    RunEnded,
    RunStarted,
    StepsTimed,
    StepTiming,
    WorkerExited,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.records.timings import TimingLog
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.reports.costs import costs_of, sums_in_words
from hetero_hvd.run.reports.series import report_of

HOUR = 3600.0
ALPHA, GAMMA = WorkerId("alpha", 0), WorkerId("gamma", 0)


def timing(share, seconds):
    """Ten steps of a worker."""
    phases = {name: 0.0 for name in StepTiming.__struct_fields__ if name.endswith("_seconds")}
    phases |= {"forward_seconds": seconds, "step_seconds": 0.1, "comm_wait_seconds": 0.1 - seconds}
    return StepTiming(num_steps=10, local_batch_size=share, memory_bytes=1e9, **phases)


def timed(step, loss, epoch=0, rows=None, number=1):
    """One exchange."""
    return StepsTimed(
        rendezvous_id=number,
        step=step,
        epoch=epoch,
        loss=loss,
        timings=rows or (timing(80, 0.08), timing(20, 0.09)),
        exchange_seconds=0.0,
    )


def sampled(node, joules):
    """What its only GPU has used."""
    device = DeviceSample(uuid=node, energy_joules=joules, power_watts=10.0)
    return NodeSampled(node=node, devices=(device,))


def day(prices, *, gamma_comes_at=0.5):
    """Two hours of two nodes; one comes late."""
    joined = WorkersJoined(
        rendezvous_id=1,
        workers=(ALPHA, GAMMA),
        applied_steps=0,
        global_batch_size=100,
        capacities=(-1, -1),
        prefetch_steps=0,
    )
    unpriced = tuple({"alpha", "gamma"} - prices.keys())
    return [
        (0.0, RunStarted(run_id="day", command=(), nodes=(), settings={})),
        (0.0, NodesPriced(per_hour=prices, unpriced=unpriced)),
        (0.0, WorkerStarted(worker=ALPHA, host="alpha-0", num_restarts=0)),
        (0.0, sampled("alpha", 1000.0)),
        (gamma_comes_at, WorkerStarted(worker=GAMMA, host="gamma-0", num_restarts=0)),
        (0.9, joined),
        (1.0, EpochBegan(epoch=0, step=9)),
        (1.0, timed(9, 3.0)),
        (1.25, timed(19, 2.0)),
        (1.5, Evaluated(epoch=0, step=20, metrics={"accuracy": 0.9})),
        (1.5, EpochBegan(epoch=1, step=29)),
        (1.75, timed(39, 1.0, epoch=1)),
        (2.0, sampled("alpha", 73000.0)),
        (2.0, WorkerExited(worker=ALPHA, host="alpha-0", exit_code=0, words="")),
        (2.0, WorkerExited(worker=GAMMA, host="gamma-0", exit_code=0, words="")),
        (2.0, RunEnded(exit_code=0, reason="done")),
    ]


def record(folder, hours):
    """Write a day as a run does."""
    folder.mkdir()
    recorder, timings = Recorder(folder), TimingLog(folder)
    for at_seconds, event in with_tables((1e9 + at * HOUR, event) for at, event in hours):
        recorder.observe(at_seconds, event)
        timings.observe(at_seconds, event)
    recorder.close()
    timings.close()
    assert not recorder.num_lost
    return folder


@pytest.fixture
def priced(tmp_path):
    """Both have a price: two hours at 2 and one and a half at 4."""
    return record(tmp_path / "priced", day({"alpha": 2.0, "gamma": 4.0}))


@pytest.fixture
def unpriced(tmp_path):
    """One has none."""
    return record(tmp_path / "unpriced", day({"alpha": 2.0}))


def test_the_record_tells_what_it_cost(priced):
    """Of the run, of each epoch, per sample."""
    costs = costs_of(read_record(priced))
    assert costs.run.bill.cost == pytest.approx(2 * 2.0 + 1.5 * 4.0)
    assert (costs.trained.steps, costs.trained.samples) == (40, 4000)
    assert costs.per_sample(costs.run.bill.cost) == pytest.approx(10.0 / 4000)
    assert costs.run.joules == pytest.approx(72000.0)
    assert [(e.epoch, e.told.seconds, e.told.cost) for e in costs.epochs] == [
        (0, pytest.approx(0.5 * HOUR), pytest.approx(3.0)),
        (1, pytest.approx(0.5 * HOUR), pytest.approx(3.0)),
    ]
    assert next(iter(costs.epochs)).told.joules == pytest.approx(18000.0)


@pytest.mark.parametrize("way", ["shares_vary", "shares_fixed"])
def test_where_shares_follow_no_plan_costs_are_per_sample_that_was_measured(tmp_path, way):
    """A round may hold several batches: these had 100 samples, of a batch of 25."""
    events = [
        (at, msgspec.structs.replace(event, global_batch_size=25, **{way: True}))
        if isinstance(event, WorkersJoined)
        else (at, event)
        for at, event in day({"alpha": 2.0, "gamma": 4.0})
    ]
    costs = costs_of(read_record(record(tmp_path / "rounds", events)))
    assert (costs.trained.steps, costs.trained.samples) == (40, 4000)


def test_the_command_tells_it(priced, capsys):
    """With what is asked for beside it."""
    asked = ["--to", "accuracy >= 0.9", "--without", "gamma", "--owned", "alpha=1000"]
    assert main(["cost", str(priced), *asked, "--power-price", "0.1"]) == 0
    said = capsys.readouterr().out
    assert "cost 10, 2500 per million samples (3.50 node-hours)" in said
    assert "energy 0.02 kWh, 18 J per sample (not measured: gamma)" in said
    assert "gamma  1.50 h  at 4 = 6" in said
    assert "epoch 1: 1800.0 s  cost 3  1.8e+04 J" in said
    assert "accuracy >= 0.9: reached after 20 steps, cost 7" in said
    assert "without gamma: 64% cheaper per sample" in said
    assert "alpha: to own it is cheaper after 500 hours" in said


def test_the_command_tells_it_to_programs(priced, capsys):
    """The same as JSON."""
    asked = ["--to", "loss <= 1", "--without", "gamma", "--owned", "gamma=1"]
    assert main(["cost", str(priced), *asked, "--power-price", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cost"] == pytest.approx(10.0)
    assert said["unmeasured"] == ["gamma"]
    assert said["to"]["cost"] == pytest.approx(8.5, rel=0.01)
    assert "64% cheaper per sample" in said["without"][0]["words"]
    assert "no energy" in said["owned"][0]["problem"]


def test_a_node_that_has_left_is_no_mistake(tmp_path, capsys):
    """It was in the run, so it can be asked for; there is no answer."""
    events = day({"alpha": 2.0, "gamma": 4.0})
    (newest,) = (event for _, event in events if isinstance(event, WorkersJoined))
    earlier = msgspec.structs.replace(newest, workers=(ALPHA, WorkerId("delta", 0)))
    run = record(tmp_path / "left", sorted([*events, (0.8, earlier)], key=itemgetter(0)))
    assert main(["cost", str(run), "--without", "delta"]) == 0
    said = capsys.readouterr().out
    assert "without delta: cannot be told: it is not in the newest membership of alpha" in said


def test_the_page_tells_it(priced):
    """Sums and nodes."""
    spent = report_of(priced).spent
    assert spent[0] == "cost 10, 2500 per million samples (3.50 node-hours)"
    assert any("gamma" in line for line in spent)


def test_many_epochs_are_counted_soon(tmp_path, capsys):
    """A thousand of them beside a thousand samples of each node; the newest are shown."""
    hours = [(0.0, event) for _, event in day({"alpha": 1.0})[:5]]
    hours += [(i / 1000, sampled(node, 9.0 * i)) for i in range(1000) for node in ("alpha", "beta")]
    hours += [(i / 1000, EpochBegan(epoch=i, step=i)) for i in range(1000)]
    hours.append((1.0, RunEnded(exit_code=0, reason="done")))
    run = record(tmp_path / "many", sorted(hours, key=itemgetter(0)))
    assert main(["cost", str(run)]) == 0
    said = capsys.readouterr().out
    assert "980 epochs before" in said
    assert "epoch 998: 3.6 s  cost 0.001  " in said


SHORT = {
    "no bounds, of an earlier version": (None, "epoch 1: 1800.0 s  cost 3  "),
    "long beside an exchange": (0.01, "epoch 1: 1800.0 s  cost 3  "),
    "short beside an exchange": (
        0.25,
        "epoch 1: 1800.0 s (900.0 to 2700.0)  cost 3 (1.5 to 4.5)  1.8e+04 J (9000 to 2.7e+04)",
    ),
}


@pytest.mark.parametrize("kind", SHORT)
def test_what_is_not_known_exactly_of_an_epoch_is_told_with_its_bounds(tmp_path, capsys, kind):
    """Where they are far from each other; programs are told them in any case."""
    within, line = SHORT[kind]
    seconds = None if within is None else within * HOUR
    hours = [
        (at, msgspec.structs.replace(event, within_seconds=seconds))
        if isinstance(event, EpochBegan)
        else (at, event)
        for at, event in day({"alpha": 2.0, "gamma": 4.0})
    ]
    run = record(tmp_path / "run", hours)
    assert main(["cost", str(run)]) == 0
    said = capsys.readouterr().out
    assert line in said
    assert ("(from, to)" in said) is ("(" in line)
    assert main(["cost", str(run), "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["epochs"][-1]
    assert (last["most"] and last["most"]["seconds"]) == (
        None if seconds is None else pytest.approx(0.5 * HOUR + seconds)
    )


def test_a_short_time_is_no_zero():
    """Half an hour to hundredths, seconds to three digits."""
    facts = {"unpriced": [], "cost": 1.0, "cost_per_sample": None, "joules": None}
    said = [next(sums_in_words(facts | {"node_hours": hours}))[1] for hours in (2.5, 0.00156)]
    assert said == ["1 (2.50 node-hours)", "1 (0.00156 node-hours)"]


def test_who_has_no_price_is_named_everywhere(unpriced, capsys):
    """Nothing is taken for free; a price may be given later."""
    assert main(["cost", str(unpriced)]) == 0
    assert "no price_per_hour: gamma" in capsys.readouterr().out
    assert main(["report", str(unpriced)]) == 0
    assert "no price_per_hour: gamma" in capsys.readouterr().out
    assert main(["runs", str(unpriced.parent)]) == 0
    assert "  4+  " in capsys.readouterr().out
    assert main(["cost", str(unpriced), "--price", "gamma=4"]) == 0
    assert "cost 10, " in capsys.readouterr().out


def test_runs_are_sorted_by_their_cost(priced, unpriced, capsys):
    """And compared; a run without any price is the first in SQLite's order."""
    record(priced.parent / "none", day({}))
    assert main(["runs", str(priced.parent), "--sort", "cost", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(run["folder"], run["cost"]) for run in found] == [
        ("none", None),
        ("unpriced", pytest.approx(4.0)),
        ("priced", pytest.approx(10.0)),
    ]
    assert [run["unpriced"] for run in found] == ["alpha, gamma", "gamma", None]
    assert main(["compare", str(priced), str(unpriced)]) == 0
    said = capsys.readouterr().out
    assert "cost: 10 and 4 without gamma" in said
    assert "cost per million samples: 2500 and 1000" in said
    assert "joules: 7.2e+04 and 7.2e+04" in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--to", "accuracy"], "must be a metric"),
        (["--to", "recall > 1"], "there are accuracy, loss"),
        (["--owned", "alpha"], "must be NODE=PRICE"),
        (["--price", "alpha=-1"], "must be NODE=PRICE"),
        (["--price", "delta=1"], "was no node of this run"),
        (["--without", "delta"], "'delta': was no node of this run; there are alpha, gamma"),
        (["--power-price", "nan"], "must be a number"),
    ],
)
def test_what_is_wrong_is_one_line(priced, capsys, words, problem):
    """Which word, and what it must be."""
    assert main(["cost", str(priced), *words]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1


def test_a_record_of_an_earlier_version_costs_what_is_known(tmp_path):
    """Without prices and epochs."""
    kinds = NodesPriced | EpochBegan | NodeSampled
    old = [(at, event) for at, event in day({}) if not isinstance(event, kinds)]
    costs = costs_of(read_record(record(tmp_path / "old", old)))
    assert costs.run.bill.cost is None
    assert costs.run.bill.unpriced == ("alpha", "gamma")
    assert costs.run.joules is None
    assert list(costs.epochs) == []
    assert msgspec.json.encode(costs.as_dict())
