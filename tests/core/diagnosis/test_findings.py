"""What binds a run is named from its measured phases, or not at all."""

from __future__ import annotations

import math

import msgspec
import pytest

from hetero_hvd.core.diagnosis.findings import Episode, diagnose, straggler_cost_seconds
from hetero_hvd.core.step_table import mean_row
from hetero_hvd.messages import StepTiming, WorkerId

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)


def row(share=8, *, data=0.01, transfer=0.0, compute=0.08, comm=0.01, num_steps=10):
    """A worker's means; its step is the sum of its phases."""
    return StepTiming(
        num_steps=num_steps,
        local_batch_size=share,
        memory_bytes=math.nan,
        data_wait_seconds=data,
        transfer_seconds=transfer,
        forward_seconds=0.0,
        backward_seconds=compute,
        comm_wait_seconds=comm,
        optimizer_seconds=0.0,
        step_seconds=data + transfer + compute + comm,
        other_seconds=0.0,
    )


def judged(alpha, beta, *episodes):
    """Findings about two workers, without the stragglers."""
    return diagnose({ALPHA: alpha, BETA: beta}, episodes)[len(episodes) :]


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
    bound, *_ = judged(row(**phases), row(**phases))
    assert bound.is_complete
    assert bound.kind == kind
    assert bound.next_step


SHARINGS = {
    "planned": "let it train longer with balance on",
    "fixed": "train with hetero_hvd.Trainer",
    "varying": None,
}


@pytest.mark.parametrize("sharing", SHARINGS)
def test_what_to_do_about_unequal_workers_depends_on_who_divides_the_work(sharing):
    """Nothing where each takes what it gets done."""
    rows = {ALPHA: row(compute=0.18), BETA: row(compute=0.04, comm=0.15)}
    found = [each.next_step for each in diagnose(rows, sharing=sharing) if each.kind == "imbalance"]
    assert [step.startswith(SHARINGS[sharing] or "") for step in found] == [True] * bool(
        SHARINGS[sharing]
    )


GRANULAR = {
    "one grain each, which is all that there is": (16, 16, 2.0, 16, "planned", False),
    "a grain more could go over": (48, 16, 1.0, 16, "planned", True),
    "as before, in samples": (8, 8, 2.0, 1, "planned", True),
    "one sample each": (1, 1, 2.0, 1, "planned", False),
    "the script divides": (16, 16, 2.0, 16, "fixed", True),
}
"""Shares of two workers, how much slower the first is, samples in a piece, who divides, and whether
other shares would gain anything."""


@pytest.mark.parametrize("name", GRANULAR)
def test_what_whole_pieces_forbid_is_not_advised(name):
    """Nobody is told to wait for shares that cannot be; what would gain is told all the same."""
    share, other, slower, undivided, sharing, is_left = GRANULAR[name]
    alpha = row(share, data=0.0, compute=0.005 * share * slower)
    rows = {ALPHA: alpha, BETA: row(other, data=0.0, compute=0.005 * other)}
    judged = diagnose(rows, sharing=sharing, undivided=undivided)
    (found,) = (each for each in judged if each.kind == "imbalance")
    assert (found.is_problem, bool(found.next_step)) == (is_left, is_left)
    assert found.words.startswith("imbalance left" if is_left else "balanced as far as ")
    pieces = "whole samples" if undivided == 1 else "pieces of 16 samples"
    assert (pieces in found.words) is not is_left


def test_waiting_for_another_is_not_communication():
    """A wait that the last worker to be ready does not have is no cost of the reduction."""
    bound, imbalance, _ = judged(row(compute=0.18), row(compute=0.04, comm=0.15))
    assert bound.kind == "compute"
    assert imbalance.kind == "imbalance"
    assert imbalance.worker == ALPHA
    assert imbalance.max_gain_ratio == pytest.approx(0.19 * (8 / 0.19 + 8 / 0.05) / 16 - 1)
    assert "alpha:0 does 8 of 16 samples in 190 ms of its own, 95% of that" in imbalance.words


GAMMA = WorkerId("gamma", 0)
IDLE = {
    "nobody": ({ALPHA: row(comm=0.2), BETA: row(comm=0.2)}, "", "accumulation_steps"),
    "one, and one is left": (
        {ALPHA: row(comm=0.2), BETA: row(0, compute=0.01, comm=0.1)},
        "beta:0 has no samples, but takes part in it; the one that is left would reduce with",
        "leave it out: hetero-hvd drain beta:0",
    ),
    "two, and one is left": (
        {GAMMA: row(0), ALPHA: row(comm=0.2), BETA: row(0, compute=0.01)},
        "beta:0, gamma:0 have no samples, but take part in it; the one that is left",
        "leave them out: hetero-hvd drain beta:0, likewise gamma:0",
    ),
    "one, and two are left": (
        {GAMMA: row(0), ALPHA: row(comm=0.2), BETA: row(comm=0.2)},
        "gamma:0 has no samples, but takes part in it",
        "leave it out: hetero-hvd drain gamma:0",
    ),
    "one, and reductions take little": ({ALPHA: row(), BETA: row(0)}, "", "faster devices"),
}
"""Rows, what is said of workers without samples, and the advice."""


@pytest.mark.parametrize("name", IDLE)
def test_who_only_takes_part_in_reductions_is_to_be_left_out(name):
    """A GPU beside processors that get no samples would be faster without them."""
    rows, said, advice = IDLE[name]
    limit, *_ = diagnose(rows)
    assert said in limit.words
    assert ("no samples" in limit.words) == bool(said)
    assert limit.next_step.startswith(advice)
    assert not said.endswith("with") or limit.max_gain_ratio == pytest.approx(0.2 / 0.09)


def test_unequal_machines_with_fitting_shares_are_balanced():
    """A slow machine whose share makes up for it is no imbalance, and is named without blame."""
    _, imbalance, _ = judged(row(share=12), row(share=4))
    assert imbalance.is_complete
    assert not imbalance.is_problem
    assert "beta:0 does 4 of 16 samples in" in imbalance.words
    _, imbalance, _ = judged(row(), row())
    assert "all do as much in their time" in imbalance.words


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (0.08, "well balanced, no other shares are faster: "),
        (0.0804, "well balanced, other shares are less than 1% faster: "),
        (0.083, "well balanced, other shares are at most 2% faster: "),
    ],
)
def test_a_gain_that_would_be_told_as_nothing_has_its_bound(compute, words):
    """No figure of whole percent is 0."""
    _, imbalance, _ = judged(row(compute=compute), row())
    assert imbalance.words.startswith(words)
    small = msgspec.structs.replace(imbalance, max_gain_ratio=0.004)
    assert str(small).endswith("; less than 1% faster")


@pytest.mark.parametrize("name", ["data_wait_seconds", "comm_wait_seconds", "backward_seconds"])
def test_unmeasured_is_not_judged(name):
    """A phase that one worker did not measure makes the verdict incomplete, never a zero."""
    bound, *_ = judged(row(), msgspec.structs.replace(row(), **{name: math.nan}))
    assert not bound.is_complete
    assert str(bound).startswith("INCOMPLETE")


def test_a_step_spent_outside_of_the_phases_is_the_scripts():
    """Where most of the slowest worker's step is in no phase, its script binds the run."""
    slow = msgspec.structs.replace(row(), step_seconds=0.5, other_seconds=0.4)
    bound, imbalance, _ = judged(slow, row(comm=0.41))
    assert bound.kind == "script"
    assert "80% of a step is spent between steps" in bound.words
    assert "alpha:0, which sets the pace" in bound.words
    assert bound.max_gain_ratio == pytest.approx(0.5 / 0.1 - 1)
    assert (imbalance.worker, imbalance.is_problem) == (ALPHA, True)
    assert "script does on alpha:0" in imbalance.next_step


def test_nothing_measured_is_incomplete():
    """Without workers every judgement abstains."""
    assert not any(finding.is_complete for finding in diagnose({}))


def test_rows_are_averaged_by_steps():
    """A row of thirty steps weighs three times as much as one of ten; unmeasured stays so."""
    mean = mean_row([row(data=0.04), row(data=0.0, num_steps=30)])
    assert mean.data_wait_seconds == pytest.approx(0.01)
    assert (mean.num_steps, mean.local_batch_size) == (40, 8)
    assert math.isnan(mean.memory_bytes)


@pytest.mark.parametrize(
    ("shares", "busy", "cost"),
    [
        ((8, 8), (0.2, 0.1), 0.1),  # all wait for it
        ((4, 8), (0.1, 0.1), 0.1 - 12 / (4 / 0.05 + 8 / 0.1)),  # the other does half of its work
        ((8, 8), (0.1, 0.3), 0.0),  # the other one is the brake
    ],
)
def test_what_a_straggler_costs(shares, busy, cost):
    """With the shares as they are, or after the others have taken over: whichever is dearer."""
    rows = {
        worker: row(share, compute=seconds, data=0.0)
        for worker, share, seconds in zip((ALPHA, BETA), shares, busy, strict=True)
    }
    found = straggler_cost_seconds(rows, ALPHA, 0.5)
    assert found == pytest.approx(cost)
    assert math.isnan(straggler_cost_seconds(rows, ALPHA, math.nan))


def test_a_straggler_is_told_with_its_price():
    """Who, since when, why, what it cost, and what to do; what is over asks for nothing."""
    rows = {ALPHA: row(compute=0.18, data=0.0), BETA: row(compute=0.09, data=0.0, comm=0.1)}
    slow = Episode(
        worker=ALPHA,
        since_step=30,
        speed_ratio=0.5,
        cause="throttle",
        cost_seconds_per_step=0.09,
        gain_ratio=0.9,
        cost_seconds=1.8,
    )
    found, *_ = diagnose(rows, [slow])
    assert found.words == (
        "alpha:0 is slow since step 30: 0.50 of its own speed (throttle: a CPU quota holds it "
        "back); it costs 90 ms a step, 1.8 s in all"
    )
    assert found.next_step == "raise the CPU quota of alpha"
    assert found.max_gain_ratio == pytest.approx(0.9)
    slow.until_step = 50
    found, *_ = diagnose(rows, [slow])
    assert found.words.startswith("alpha:0 was slow from step 30 to 50: 0.50")
    assert not found.is_problem


def test_memory_is_judged_by_who_has_least_of_it_left():
    """Tight below a tenth, with what to do; INCOMPLETE as soon as one limit is not known."""

    def found(*used_bytes, limit=100.0):
        rows = [
            msgspec.structs.replace(row(), memory_bytes=used, memory_limit_bytes=limit)
            for used in used_bytes
        ]
        return judged(*rows)[-1]

    roomy, tight, unknown = found(40.0, 20.0), found(40.0, 95.0), found(40.0, 20.0, limit=math.nan)
    assert (roomy.is_complete, roomy.worker, roomy.next_step) == (True, ALPHA, "")
    assert roomy.evidence["headroom_ratio"] == pytest.approx(0.6)
    assert (tight.worker, tight.words[:15], bool(tight.next_step)) == (
        BETA,
        "memory is tight",
        True,
    )
    assert not unknown.is_complete


OPTIONAL = [name for name in StepTiming.__struct_fields__ if name.endswith("_seconds")]


@pytest.mark.parametrize("what", OPTIONAL)
@pytest.mark.parametrize("binding", ["data", "compute", "comm"])
def test_whatever_one_worker_has_not_measured_the_judgement_stands_or_abstains(what, binding):
    """A kernel that counts no waits, another version: NaN on one worker, a number on others."""
    well = msgspec.structs.replace(
        row(**{binding: 0.2}),
        throttled_seconds=0.0,
        contention_seconds=0.15,
        evaluation_seconds=0.02,
        garbage_seconds=0.0,
        processor_seconds=0.1,
        memory_stall_seconds=0.0,
        overlapped_comm_seconds=0.0,
    )
    blind = msgspec.structs.replace(well, **{what: math.nan})
    for rows in ((well, blind), (blind, well), (blind, blind)):
        for found in judged(*rows):
            assert "nan" not in found.words
