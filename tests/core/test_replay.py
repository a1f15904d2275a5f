"""Timings of real jobs, judged again: a recorded run gives the same verdicts for ever."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hetero_hvd.messages import event_from_json
from tests.kit.simulated_job import Diagnosis

STREAMS = Path(__file__).with_name("streams")
FAULT_STEP, LAST_WORD_STEP = 38, 50
"""Of both runs: the first step with the fault, and before which step there must be a word."""


def replayed(name):
    """What the driver says of recorded timings."""
    diagnosis = Diagnosis()
    for line in gzip.decompress((STREAMS / f"{name}.jsonl.gz").read_bytes()).splitlines():
        record = json.loads(line)
        at_seconds = record.pop("at_unix_seconds")
        diagnosis.take(event_from_json(json.dumps(record)), at_seconds)
    return diagnosis


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("disk-on-middle", {"middle": "input"}),
        ("optimizer-on-fast-and-disk-on-slow", {"fast": "optimizer", "slow": "input"}),
    ],
)
def test_recorded_jobs_are_judged_right(name, expected):
    """On a machine with ten busy programs for each core: who was slow, why, and nobody else.

    Until enough is measured the cause may be unknown, never another one.
    """
    diagnosis = replayed(name)
    slow = [report for report in diagnosis.reports if report.is_slow]
    assert {report.worker.node: report.cause for report in slow} == expected
    for node, cause in expected.items():
        first = next(report for report in slow if report.worker.node == node)
        assert FAULT_STEP <= first.since_step <= first.step < LAST_WORD_STEP
        assert {r.cause for r in slow if r.worker.node == node} <= {cause, "unknown"}
    assert all(report.speed_ratio < 0.85 for report in slow)
