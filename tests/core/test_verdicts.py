"""What binds a run is named from its measured phases, or not at all."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hetero_hvd.core.verdicts import WorkerMeans, judge


def worker(name="alpha:0", share=8.0, *, data=0.01, transfer=0.0, compute=0.08, comm=0.01):
    """A worker's means; its step is the sum of its phases."""
    return WorkerMeans(
        name=name,
        share=share,
        data_wait_seconds=data,
        transfer_seconds=transfer,
        compute_seconds=compute,
        comm_wait_seconds=comm,
        step_seconds=data + transfer + compute + comm,
    )


@pytest.mark.parametrize(
    ("phases", "kind"),
    [
        ({"data": 0.09}, "input"),
        ({"transfer": 0.09}, "transfer"),
        ({"comm": 0.09}, "communication"),
        ({}, "compute"),
    ],
)
def test_what_takes_the_step_is_named(phases, kind):
    """The phase that takes most of the pace setter's step binds the run; else its compute does."""
    bound, *_ = judge([worker(**phases), worker("beta:0", **phases)])
    assert bound.is_complete
    assert bound.kind == kind
    assert bound.next_step


def test_waiting_for_another_is_not_communication():
    """A wait that the last worker to be ready does not have is no cost of the reduction."""
    slow = worker(compute=0.18, comm=0.01)
    fast = worker("beta:0", compute=0.04, comm=0.15)
    bound, imbalance, _ = judge([slow, fast])
    assert bound.kind == "compute"
    assert imbalance.kind == "imbalance"
    assert imbalance.max_gain_ratio == pytest.approx(0.19 * (8 / 0.19 + 8 / 0.05) / 16 - 1)


def test_unequal_machines_with_fitting_shares_are_balanced():
    """A slow machine whose share makes up for it is no imbalance."""
    _, imbalance, _ = judge([worker(share=12.0), worker("beta:0", share=4.0)])
    assert imbalance.is_complete
    assert imbalance.max_gain_ratio is None


@pytest.mark.parametrize("name", ["data_wait_seconds", "comm_wait_seconds", "compute_seconds"])
def test_unmeasured_is_not_judged(name):
    """A phase that one worker did not measure makes the verdict incomplete, never a zero."""
    bound, *_ = judge([worker(), replace(worker("beta:0"), **{name: math.nan})])
    assert not bound.is_complete
    assert str(bound).startswith("INCOMPLETE")


def test_a_step_spent_outside_of_the_phases_is_not_judged():
    """Where most of a step is in no measured phase, the largest phase does not bind the run."""
    bound, *_ = judge([replace(worker(), step_seconds=0.5)])
    assert not bound.is_complete
    assert "80% of a step on alpha:0 is in no phase" in str(bound)


def test_nothing_measured_is_incomplete():
    """Without workers every judgement abstains."""
    assert not any(finding.is_complete for finding in judge([]))
