"""Nothing in a run's folder grows without a limit, however long it trains."""

from __future__ import annotations

import msgspec
import pytest

from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.reports import intervals
from hetero_hvd.run.reports.costs import costs_of
from hetero_hvd.run.reports.facts import facts_of
from hetero_hvd.run.reports.html import page_of, write_report
from hetero_hvd.run.reports.series import MAX_POINTS, lines_of, report_of
from tests.kit.long_run import WEEK_SECONDS, LongRun, record, size_bytes

SPARSE = LongRun(
    num_steps=100_000,
    exchange_steps=40,
    sample_seconds=600.0,
    report_seconds=600.0,
    epoch_seconds=3600.0,
)
"""A week of which little is told: as many tiers as in a real one."""


def check(folder, run):
    """What must be right of a week, and the folder's size."""
    size = size_bytes(folder)
    found = read_record(folder)
    costs = costs_of(found)
    hours = WEEK_SECONDS / 3600
    assert costs.run.bill.cost == pytest.approx(run.num_nodes * hours, rel=1e-6)
    watts = 412.7 + 100.0
    assert costs.run.joules == pytest.approx(run.num_nodes * watts * WEEK_SECONDS, rel=0.01)
    resets = int(WEEK_SECONDS / run.reset_seconds)
    lost = resets * run.exchange_steps  # at each reset, which are done again
    assert costs.trained.steps == pytest.approx(run.num_steps, abs=lost)
    facts = facts_of(found)
    assert facts.samples_per_second == pytest.approx(16 * run.num_nodes / 0.05, rel=0.02)
    assert facts.num_memberships == 1 + resets
    report = report_of(folder)
    (loss,) = lines_of(report.plots, "loss").values()
    assert MAX_POINTS / 3 < len(loss.steps) <= 2 * MAX_POINTS + 2
    assert loss.steps[0] < 0.01 * run.num_steps
    assert loss.steps[-1] > 0.99 * run.num_steps
    assert loss.values[-1] < 0.1 * loss.values[0]
    assert len(page_of(report)) > len(msgspec.json.encode(loss.steps))
    return size


def test_a_week_is_recorded_from_its_beginning_to_its_end(tmp_path, monkeypatch):
    """Costs, energy, curves and memberships are those of the whole week."""
    monkeypatch.setattr(intervals, "MAX_RAW_BYTES", 0)  # of a real week the oldest is gone
    record(tmp_path, SPARSE)
    write_report(tmp_path)
    assert check(tmp_path, SPARSE) < 40 * 2**20


@pytest.mark.matrix
@pytest.mark.timeout(3000)
def test_a_week_of_ten_million_steps_has_its_limit(tmp_path):
    """With all that four nodes tell, second by second."""
    week = LongRun()
    record(tmp_path, week)
    write_report(tmp_path)
    assert check(tmp_path, week) < 200 * 2**20
