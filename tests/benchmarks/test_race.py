"""What is made of the turns of a race; the runs themselves are measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks import tables
from benchmarks.comparisons import quota
from benchmarks.comparisons.quota import QUOTAS, Entry, Race
from benchmarks.parts import EQUAL, equal, mixed
from benchmarks.peers import Run
from benchmarks.tables import QUICK, add_shares, ahead, gains_of, shares_of, table_of
from hetero_hvd.errors import JobError

TURNS = [
    {"ours": 0.9, "lbb": 0.8, "oracle": 1.0},
    {"ours": 0.45, "lbb": 0.3, "ddp": 0.5, "oracle": 0.5},
    {"lbb": 0.9},
]


def run_of(step_seconds):
    """A run whose every step took so long."""
    return Run(
        step_seconds=(step_seconds,) * 10,
        losses=(1.0,) * 10,
        accuracies=(0.9,),
        tables=((step_seconds / 2,) * 4,) * 2,
        blocked_seconds=(0.0,) * 2,
    )


def test_ratios_are_taken_within_a_turn():
    """A machine at half its speed changes none; a turn in which one of both failed has none."""
    gains = gains_of(TURNS)
    assert gains["lbb"] == pytest.approx([1.125, 1.5])
    assert gains["oracle"] == pytest.approx([0.9, 0.9])
    assert gains["ddp"] == pytest.approx([0.9])
    table = tables.Table(title="T", text="", columns=())
    cells = add_shares(table, TURNS)
    assert cells["lbb"] == ["0.800 (0.300 to 0.900)", "1.312 (1.125 to 1.500)"]
    assert table.measured["ours / lbb"] == gains["lbb"]
    assert table.bars["lbb"] == 0.8


def test_the_closest_peer_is_the_one_to_be_ahead_of():
    """The oracle apart, which knows what the others have to find out."""
    number = ahead("a case", TURNS)
    assert (number.found, number.is_reached) == ("0.900 (0.900 to 0.900)", False)
    number = ahead("a case", TURNS[:1])
    assert (number.found, number.is_reached) == ("1.125 (1.125 to 1.125)", True)
    assert not ahead("a case", [{"ours": 0.9}]).is_reached


def test_a_peer_that_fails_costs_its_row_alone(monkeypatch):
    """And every row has a cell for each column."""

    def run_peer(peer, _cluster, _job):
        if peer == "ddp" and not failed:
            failed.append(peer)
            raise JobError("an accident")
        return run_of(0.11 if peer == "ours" else 0.12)

    failed, said = [], []
    monkeypatch.setattr(tables, "run_peer", run_peer)
    (table,) = equal(replace(QUICK, repeats=2), said.append)
    assert "ddp 1 of 2: failed, an accident" in said
    assert len(table.measured["ddp"]) == 1
    assert len(table.measured["ours / horovod"]) == 2
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.numbers[0].found == "-8.33% (-8.33% to -8.33%)"


@pytest.mark.parametrize(
    ("best", "tried"),
    [(0.0, [0.03, -0.03]), (0.06, [0.03, 0.06, 0.09]), (-0.03, [0.03, -0.03, -0.06])],
)
def test_the_best_static_split_is_searched_for(monkeypatch, best, tried):
    """From that by speeds on, as long as it gets better; what was best is found on either side."""

    def run(_self, entries):
        asked.extend(entries)
        return [run_of(1 + abs(entry.given_up - best)) for entry in entries]

    asked = []
    monkeypatch.setattr(Race, "run", run)
    race = Race({}, QUOTAS)
    race.speeds = {"fast": 100.0, "half": 50.0, "quarter": 25.0}
    found = race.oracle(10, run_of(1 + abs(best)), [].append)
    assert [entry.given_up for entry in asked] == pytest.approx(tried)
    assert found.step_seconds[0] == pytest.approx(1.0)


@pytest.mark.parametrize("given_up", [0.0, 0.1, -0.1])
def test_a_static_split_gives_up_the_same_on_each_host(tmp_path, given_up):
    """Relative to the fastest host's speed, which stays the unit of the hints."""
    path = tmp_path / "nodes.yaml"
    hosts = {name: SimpleNamespace(node=dict) for name in QUOTAS}
    race = Race(hosts, QUOTAS)
    race.speeds = {"fast": 100.0, "half": 50.0, "quarter": 25.0}
    race._write_nodes(path, Entry(peer="static", num_steps=1, given_up=given_up))
    hints = [node["relative_speed"] for node in json.loads(path.read_text())["nodes"]]
    assert hints == pytest.approx([(1 / 2**i - given_up) / (1 - given_up) for i in range(3)])


def test_a_race_states_every_number_to_beat(monkeypatch):
    """Each with its range; without the oracle there is an error."""
    monkeypatch.setattr(tables, "run_peer", lambda *_: run_of(0.16))
    (table,) = mixed(replace(QUICK, repeats=2), [].append)
    found = {number.quantity.partition(":")[0]: number for number in table.numbers}
    assert found["ours / oracle, end to end"].found == "1.000 (1.000 to 1.000)"
    assert found["ours / best other peer, second half"].is_reached
    assert found["share of ideal, end to end"].is_reached

    def run_peer(peer, *_):
        if peer == "oracle":
            raise JobError("an accident")
        return run_of(0.16)

    monkeypatch.setattr(tables, "run_peer", run_peer)
    with pytest.raises(JobError, match="did not both run"):
        list(mixed(QUICK, [].append))


def test_an_epoch_costs_what_its_devices_cost():
    """Seconds and price follow from the share of the ideal."""
    run = run_of(EQUAL.global_batch_size / EQUAL.ideal_samples_per_second / 0.5)
    (row,) = table_of("T", EQUAL, [{"ours": run}]).rows
    named = dict(zip(tables.RACE_COLUMNS, row, strict=True))
    assert shares_of(EQUAL, [{"ours": run}])[0]["ours"] == pytest.approx(0.5)
    assert named["seconds per epoch"] == "8.00"
    assert named["cost per epoch"] == f"{8 / 3600 * 4:.5f}"
    assert (named["steps to target"], named["load variance"]) == ("10", "0.0%")


class FakeCluster:
    """Hosts whose control groups are folders of files; what is written to them is seen."""

    def __init__(self, folder):
        self.groups = {name: folder / name for name in QUOTAS}
        for group in self.groups.values():
            group.mkdir()
            (group / "cpu.cfs_period_us").touch()

    def __getitem__(self, name):
        return type("Host", (), {"cgroup": self.groups[name]})

    def quotas(self):
        """Of all hosts, in percent of a core."""
        files = [group / "cpu.cfs_quota_us" for group in self.groups.values()]
        return [int(file.read_text()) // 100 for file in files]


@pytest.mark.timeout(60)
def test_quotas_hold_from_the_first_step_on(tmp_path, monkeypatch):
    """Programs start with whole cores; when all are ready the quotas are set, and all may go."""
    cluster, seen = FakeCluster(tmp_path), []

    def run(_race, entry, meeting):
        seen.append(cluster.quotas())
        for name in entry.names:
            (meeting / name).touch()
        while not (meeting / "go").exists():
            pass
        seen.append(cluster.quotas())
        return run_of(entry.batch / 1000)

    monkeypatch.setattr(Race, "_run", run)
    race = Race(cluster, QUOTAS)
    race.measure_solo(10)
    assert seen == [[100, 100, 100]] * 3 + [[*QUOTAS.values()]] * 3
    assert race.speeds == pytest.approx(dict.fromkeys(QUOTAS, 1000.0))
    assert race.share_of_ideal(run_of(quota.BATCH / 1500)) == pytest.approx(0.5)


@pytest.mark.timeout(60)
def test_a_start_that_fails_holds_nobody_up(tmp_path, monkeypatch):
    """Those that wait at the meeting may go, and the error is told."""

    def run(_race, entry, meeting):
        if "half" in entry.names:
            raise JobError("an accident")
        while not (meeting / "go").exists():
            pass
        return run_of(0.1)

    monkeypatch.setattr(Race, "_run", run)
    race = Race(FakeCluster(tmp_path), QUOTAS)
    with pytest.raises(JobError, match="an accident"):
        race.measure_solo(10)
    with pytest.raises(JobError, match="an accident"):
        race.run([Entry(peer="ddp", num_steps=10)])
