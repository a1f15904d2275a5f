"""Options and shares on the examples: what is made of runs, and that an example can be watched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("PIL")

from benchmarks.comparisons import ablations
from benchmarks.comparisons.ablations import BASE, PEERS, Found, options_table, shares_table
from benchmarks.comparisons.example_runs import BATCH, EXAMPLES, PRICES, SPEEDS, emulated
from benchmarks.peers import Run, read_run
from benchmarks.tables import FULL, QUICK
from benchmarks.workloads.example_data import BLOCK, WRITERS
from benchmarks.workloads.examples import Watch, Way
from hetero_hvd.data import TextBlocks
from hetero_hvd.errors import JobError

CHECKOUT = Path(__file__).parents[2]
NUM_SAMPLES = 240
NO = "UserError: staleness_bound: no"


def seen(step_seconds, *, num_steps=12, loss=1.0, num_bytes=1000):
    """What a worker saw of even steps."""
    return {
        "ended_at_seconds": [step_seconds * number for number in range(num_steps)],
        "losses": [loss] * num_steps,
        "num_bytes": [num_bytes * number for number in range(num_steps)],
        "refused": "",
    }


def test_ways_stand_beside_the_plain_one():
    """Speed, loss, traffic and cost; four batches in a step are a quarter of the bytes a sample."""
    found = {
        BASE: seen(0.1),
        "accumulation": seen(0.2, num_steps=4, loss=1.5),
        "staleness": {"ended_at_seconds": [], "losses": [], "num_bytes": [], "refused": NO},
    }
    table = options_table("a model", "Somewhere", [found], NUM_SAMPLES)
    rows = {row[0]: row[1:] for row in table.rows}
    cost = f"{1e6 / 200 / 3600 * sum(PRICES):.3f}"
    assert rows[BASE] == ("200", "1.00 x", "1.0000 (+0.0%)", "1000", "50", cost)
    assert rows["accumulation"][:5] == ("300", "1.50 x", "1.5000 (+50.0%)", "1000", "17")
    assert set(rows["staleness"]) == {"refused"}
    assert table.text.endswith(f" staleness: {NO}.")
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.measured == {BASE: [1.0], "accumulation": [pytest.approx(1.5)]}


def test_the_harness_reads_what_a_watched_script_has_seen(tmp_path):
    """Every field that it asks for, as it does of the other workloads."""
    watch = Watch(Way())
    for loss in (3.0, 2.0, 1.0):
        watch.step_applied(loss)
    facts = msgspec.to_builtins(watch.seen) | {"accuracies": []}
    (tmp_path / "record.json").write_text(json.dumps(facts))
    run = read_run(tmp_path)
    assert run.losses == (3.0, 2.0, 1.0)
    assert len(run.step_seconds) == len(run.processor_seconds) == 2
    assert run.peak_bytes > 2**20


class Failing:
    """A place at which every second run fails."""

    title, about = "a place", "Somewhere"

    def __init__(self):
        self.num_runs = 0

    def overrun(self, _run):
        """All fits."""
        return 1.0

    def run(self, _example, ways, _num_samples, _peer):
        """Train, or fail."""
        self.num_runs += 1
        if not self.num_runs % 2:
            raise JobError("a worker | is gone\nand more")
        found = {way: seen(0.1) for way in ways}
        return found, Run(step_seconds=(0.1,) * 4, losses=(), accuracies=(), tables=((1, 1),) * 2)


@pytest.mark.parametrize("num_turns", [1, 2, 4])
def test_a_run_that_fails_costs_only_itself(num_turns):
    """It is told in a row; the others of the table count, and the table is to be measured again."""
    effort, told = replace(FULL, repeats=2 * num_turns), []
    for make in (
        ablations._options,
        lambda *given: ablations._shares(given[0], EXAMPLES, *given[2:]),
    ):
        table = make(Failing(), EXAMPLES[0], effort, told.append)
        assert table.is_whole == (num_turns == 1 and table.title.startswith("Options"))
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert any("failed, a worker | is gone" in line for line in told)


def test_what_never_ran_is_told():
    """A table in which every turn failed."""
    place = Failing()
    place.num_runs = 1
    table = ablations._options(place, EXAMPLES[0], QUICK, lambda _: None)
    assert [row[1] for row in table.rows] == ["failed: a worker / is gone"]


def test_every_option_meets_every_other():
    """The five kinds in all their pairs."""
    names = {
        "bf16": "bf16",
        "accum": "accumulation",
        "fp16": "fp16 with",
        "stale": "staleness",
        "small": "micro",
    }
    pairs = [{kind for kind, word in names.items() if word in way} for way in ablations.PAIRS]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, combinations(names, 2)))


def test_neither_the_first_steps_nor_the_last_one_count():
    """What is under way at the end is applied at once, which is no speed."""
    found = seen(0.1)
    found["ended_at_seconds"] = [-5.0, *found["ended_at_seconds"][1:-1], 1.0001]
    assert Found.of(found, NUM_SAMPLES).samples_per_second == pytest.approx(200)
    with pytest.raises(JobError, match="3 steps are too few"):
        Found.of(seen(0.1, num_steps=3), NUM_SAMPLES)


def test_shares_are_compared_within_a_turn():
    """A machine at half its speed in the second turn changes no ratio."""

    def runs(*step_seconds):
        return [
            Run(step_seconds=(s,) * 4, losses=(), accuracies=(), tables=((s, s / 2),) * 2)
            for s in step_seconds
        ]

    seconds = {"uniform": (0.4, 0.8), "static": (0.1, 0.2), "ours": (0.125, 0.25)}
    found = {("a model", peer): runs(*of) for peer, of in seconds.items()}
    table = shares_table("a place", "Somewhere", found)
    assert [row[1] for row in table.rows] == list(PEERS.values())
    assert table.rows[0][3] == "0.250 (0.250 to 0.250)"
    assert table.rows[2][5] == "33.3%"
    assert all(len(row) == len(table.columns) for row in table.rows)
    (number,) = table.numbers
    assert (number.found, number.is_reached) == ("0.800 (0.800 to 0.800)", False)


@pytest.mark.parametrize("slow", [None, *range(len(SPEEDS))])
def test_what_does_not_fit_has_no_figure(slow):
    """The compute of any worker, in the second half; its pair has none, the other models have."""
    place, told = emulated(), []

    def timings(peer):
        """A worker that computes for half as long again as it may."""
        rows = []
        for number, (node, share) in enumerate(zip(place.nodes, (32, 16, 8), strict=True)):
            seconds = sum(
                value * share ** ("sample" in name) for name, value in node["emulate"].items()
            )
            late = 1.5 if number == slow and peer == "static" else 1.02
            row = {"transfer_seconds": None, "forward_seconds": seconds * late / 4}
            row |= {"backward_seconds": seconds * late * 3 / 4, "local_batch_size": share}
            rows.append(row)
        return (({**rows[0], "forward_seconds": 9.0}, *rows[1:]), tuple(rows), tuple(rows))

    class Measured(Failing):
        nodes, overrun = place.nodes, place.__class__.overrun

        def run(self, example, ways, _num_samples, peer):
            given = peer if example is EXAMPLES[0] else ""
            found = {way: seen(0.1) for way in ways}
            shown = {"tables": ((1, 1),) * 2, "timings": timings(given)}
            return found, Run(step_seconds=(0.1,) * 4, losses=(), accuracies=(), **shown)

    table = ablations._shares(Measured(), EXAMPLES[:2], QUICK, told.append)
    cells = {row[:2]: row[2] for row in table.rows}
    assert table.is_whole == (slow is None)
    assert len(table.numbers) == (2 if slow is None else 1)
    fits = cells[EXAMPLES[0].title, "adaptive"]
    assert fits == ("560" if slow is None else f"with static shares: {ablations.UNFIT}")
    assert cells[EXAMPLES[1].title, "adaptive"] == "560"
    assert any(ablations.UNFIT in line for line in told) == (slow is not None)


def test_the_static_split_alone_knows_the_speeds():
    """In nodes.yaml of the emulated workers."""
    place = emulated()
    speeds = [node.get("relative_speed") for node in place.nodes_of("static")]
    assert speeds == list(SPEEDS)
    assert not any("relative_speed" in node for node in place.nodes_of("ours"))
    assert all("emulate" in node for node in place.nodes_of("ours"))


@pytest.mark.parametrize("effort", [QUICK, FULL], ids=["quick", "full"])
def test_each_way_has_all_its_samples(effort, tmp_path):
    """Whole batches, and whole steps of four; the data are neither more nor less."""
    num_samples = BATCH * ablations.num_batches(effort)
    assert ablations.num_batches(effort) % 4 == 0
    assert len({example.script for example in EXAMPLES} & set(WRITERS)) == len(WRITERS)
    WRITERS["gpt2"](tmp_path, num_samples)
    num_blocks = len(TextBlocks(str(tmp_path), BLOCK))
    assert (num_blocks - num_blocks // 20) // BATCH == num_samples // BATCH
    assert f"--block {BLOCK}" in EXAMPLES[1].flags
    WRITERS["bert"](tmp_path, num_samples)
    assert len((tmp_path / "train.tsv").read_text().splitlines()) == num_samples + 1


@pytest.mark.process
def test_an_example_is_watched_in_several_ways(tmp_path):
    """The script as it stands, on one worker: as many steps as there should be; one is refused."""
    every = ablations.ways_of(QUICK)
    ways = [BASE, "accumulation over 4 batches", "wait-free"]
    WRITERS["resnet"](tmp_path / "data", 64)
    flags = "--depths 1 1 1 1 --epochs 1 --width 4 --pixels 32 --batch-size 8"
    job = {"example": "resnet", "flags": flags.split(), "ways": {way: every[way] for way in ways}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    own = {"PYTHONPATH": f"{CHECKOUT}{os.pathsep}{CHECKOUT / 'scripts'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.workloads.examples", str(tmp_path)]
    subprocess.run(command, check=True, env=os.environ | own, cwd=tmp_path, timeout=100)
    found = json.loads((tmp_path / "result.json").read_text())
    assert [len(found[way]["losses"]) for way in ways] == [8, 2, 0]
    assert [bool(found[way]["refused"]) for way in ways] == [False, False, True]
    assert "wait_free" in found["wait-free"]["refused"]
