"""The page is made from measurements, and parts measured earlier stay."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks import again, report
from benchmarks.numbers import Number, simulated, timed
from benchmarks.parts import MIXED
from benchmarks.tables import Table
from hetero_hvd.errors import UserError

WHEN = {"date": "today", "commit": "abc"}


def table(title, found):
    """A small table."""
    number = Number(quantity=f"speed {title}", goal=">= 1", found=found, is_reached=found >= "1")
    return Table(
        title=title,
        text="Measured.",
        columns=("peer", "share"),
        rows=[("ours", found)],
        bars={"ours": 0.5},
        numbers=[number],
    )


def test_the_page_holds_all_parts_with_their_own_header(tmp_path):
    """A part that is measured again replaces itself and nothing else."""
    report.write(tmp_path, {"command": "first", **WHEN}, "one", [table("One", "0.9")])
    report.write(tmp_path, {"command": "second", **WHEN}, "two", [table("Two", "1.1")])
    report.write(tmp_path, {"command": "third", **WHEN}, "one", [table("One", "1.2")])
    page = (tmp_path / "benchmarks.md").read_text()
    assert "first" not in page
    assert page.index("command: third") < page.index("command: second")
    assert "| speed One | >= 1 | 1.2 | yes |" in page
    assert "benchmarks/two.svg" in page
    assert (tmp_path / "benchmarks" / "one.svg").read_text().startswith("<svg")
    assert set(json.loads((tmp_path / "benchmarks" / "results.json").read_text())) == {"one", "two"}


def test_the_steps_of_a_run_are_left_beside_the_checkout(tmp_path, monkeypatch):
    """They explain a run that went badly, and are no result."""
    monkeypatch.chdir(tmp_path)
    measured = replace(table("One", "0.9"), raw=[{"step_seconds": [0.1, 0.2]}])
    report.write(tmp_path, {"command": "x", **WHEN}, "one", [measured])
    assert "step_seconds" not in (tmp_path / "benchmarks" / "results.json").read_text()
    assert json.loads((tmp_path / report.RAW / "one.json").read_text()) == {"One": measured.raw}


def test_a_further_run_agrees_where_its_range_meets_those_of_all_before(tmp_path):
    """Each run is kept beside the others; a quantity without a spread is not judged."""
    found = [
        {"ours": [0.92, 0.95, 0.93], "ddp": [0.90, 0.91], "once": [0.5], "gone": [1.0, 1.0]},
        {"ours": [0.96, 0.97], "ddp": [0.92, 0.93], "once": [0.6]},
        {"ours": [0.955, 0.956], "ddp": [0.94, 0.95], "once": [0.55], "new": [1.0, 1.0]},
    ]
    for measured in found:
        has_runs = (tmp_path / again.STORE).exists()
        earlier = again.kept_runs(tmp_path, "one") if has_runs else []
        tables = [replace(table("One", "0.9"), measured=measured)]
        report.write(tmp_path, {"command": "x", **WHEN}, "one", tables, earlier=earlier)
    rows = again.rows_of([{"One": measured} for measured in found])
    assert [(row.label, row.agrees) for row in rows] == [
        ("ours", True),
        ("ddp", False),
        ("once", None),
    ]
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| quantity | today, abc | today, abc | today, abc | agrees |" in page
    ours = "0.930 (0.920 to 0.950) | 0.965 (0.960 to 0.970) | 0.956 (0.955 to 0.956) | yes"
    assert f"| ours | {ours} |" in page
    ddp = "0.905 (0.900 to 0.910) | 0.925 (0.920 to 0.930) | 0.945 (0.940 to 0.950) | NO"
    assert f"| ddp | {ddp} |" in page


def test_nothing_agrees_with_what_states_no_spread(tmp_path):
    """Neither a part that was never measured, nor one of single turns."""
    report.write(tmp_path, WHEN, "one", [replace(table("One", "0.9"), measured={"ours": [0.9]})])
    with pytest.raises(UserError, match="states no spread"):
        again.kept_runs(tmp_path, "one")
    with pytest.raises(UserError, match="holds no part 'two'"):
        again.kept_runs(tmp_path, "two")


def test_the_header_says_what_a_reader_needs():
    """Command, commit, machine and how busy it was."""
    facts = report.header(["scripts/bench", "--quick"])
    assert set(facts) == {"command", "commit", "date", "machine", "load before"}
    assert facts["command"] == "scripts/bench --quick"


def test_the_ideal_is_the_sum_of_the_devices_own_speeds():
    """At 1 : 1 : 1 : 0.21 equal shares reach about a quarter of it, the oracle nearly all."""
    batch = MIXED.global_batch_size
    even = batch / MIXED.step_seconds("horovod") / MIXED.ideal_samples_per_second
    best = batch / MIXED.step_seconds("oracle") / MIXED.ideal_samples_per_second
    assert 0.22 < even < 0.30
    assert 0.99 < best <= 1.0
    assert min(MIXED.best_shares) >= 41


@pytest.mark.timeout(240)
def test_the_simulated_numbers_to_beat_are_reached():
    """All rows, with 20 seeds."""
    missed = [row for row in simulated(num_seeds=20) if not row.is_reached]
    assert missed == []


def test_what_is_timed_is_told_with_its_goal():
    """A plan and a table of timings; whether they are fast is for the machine of the bench."""
    assert all(" ms" in row.found and row.goal for row in timed(num_workers=50))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quota", "--repeats", "0"], "--repeats: 0 must be 1 or more"),
        (["speed"], "unknown part 'speed': must be of"),
    ],
)
def test_a_bad_argument_is_one_line(words, said):
    """And nothing is measured."""
    command = [sys.executable, "-m", "benchmarks", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert not done.stdout


def test_a_part_goes_on_where_it_was_broken_off(tmp_path):
    """With whole tables of this commit and these settings, and with no others."""
    settings, facts = {"repeats": 5}, {"command": "x", **WHEN}
    tables = [table("One", "1.1"), replace(table("Two", "0.9"), is_whole=False)]
    report.write(tmp_path, facts, "part", tables, settings=settings)
    kept = report.tables_kept(tmp_path, facts, "part", settings)
    assert [replace(each, columns=tuple(each.columns)).title for each in kept] == ["One"]
    assert kept[0].numbers == tables[0].numbers
    changed = facts | {"commit": "abc with changes"}
    for other, part, given in (
        (facts | {"commit": "abd"}, "part", settings),
        (changed, "part", settings),
        (facts, "another", settings),
        (facts, "part", {"repeats": 1}),
    ):
        assert report.tables_kept(tmp_path, other, part, given) == []
