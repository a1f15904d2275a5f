"""Injected causes: what counts as right, and two cheap ones on real jobs."""

from __future__ import annotations

import pytest

from benchmarks.causes.injected import CASES, FALSE, GUILTY, MISSED, RIGHT, WRONG, grade, run_case
from hetero_hvd.messages import Finding, WorkerId

DATA, COMPUTE, HEALTHY, _, LINK, _, _ = CASES


def findings(*stragglers, bound="compute"):
    """As summary.json has them."""
    found = [
        {"kind": "straggler", "worker": [node, 0], "cause": cause} for node, cause in stragglers
    ]
    return (*found, {"kind": bound, "worker": None}, {"kind": "imbalance", "worker": None})


@pytest.mark.parametrize(
    ("case", "found", "expected"),
    [
        (DATA, findings((GUILTY, "input")), RIGHT),
        (DATA, findings((GUILTY, "compute")), WRONG),
        (DATA, findings((GUILTY, "input"), (GUILTY, "unknown")), RIGHT),
        (DATA, findings(), MISSED),
        (DATA, findings((GUILTY, "input"), ("slow", "compute")), FALSE),
        (HEALTHY, findings(), RIGHT),
        (HEALTHY, findings(("slow", "compute")), FALSE),
        (LINK, findings(bound="communication"), RIGHT),
        (LINK, findings(), WRONG),
    ],
)
def test_what_counts(case, found, expected):
    """Any straggler that was not injected is false, whatever else was said."""
    assert grade(case, found).grade == expected


def test_findings_are_told_apart_as_they_are_written():
    """The fields that are read here are those of a finding."""
    assert {"kind", "worker", "cause"} <= set(Finding.__struct_fields__)
    assert WorkerId("middle", 0) == WorkerId(*["middle", 0])


@pytest.mark.process
@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "case", [pytest.param(DATA, marks=pytest.mark.matrix), COMPUTE], ids=lambda case: case.kind
)
def test_an_injected_cause_is_named(case, tmp_path):
    """A real job of three unequal workers, one of which gets slow: who, and why."""
    outcome = run_case(case, tmp_path, is_hasty=True)
    assert (outcome.grade, outcome.findings[0]["worker"]) == (RIGHT, [GUILTY, 0])
    # On a loaded machine the others may be as late as the guilty one: then it has cost nothing.
    assert outcome.findings[0]["evidence"]["cost_seconds"] >= 0
