"""Causes on a simulated job: the driver's judgement names the right one, or abstains."""

from __future__ import annotations

import re

import pytest

from hetero_hvd.messages import CAUSES
from tests.kit.simulated_job import SimulatedJob, no_delay

SPEEDS = (1.0, 0.5, 0.21)
FASTEST = 0.00075
BATCH = 240
STEP_SECONDS = 0.115
"""Of the well job."""

COLUMNS = {
    "input": "data_wait",
    "transfer": "transfer",
    "compute": "backward",
    "optimizer": "optimizer",
    "script": "other",
}
"""Cause to the part of a step that takes longer."""

SETTLE_SECONDS, FAULT_SECONDS, WORD_SECONDS = 14.0, 16.0, 10.0


def slower(*faults, size=1.0, every=1):
    """A delay of some workers' parts by `size` times a step."""

    def delay(worker, step, _share):
        if step % every:
            return {}
        seconds = every * size * STEP_SECONDS
        return {COLUMNS.get(cause, cause): seconds for who, cause in faults if who == worker}

    return delay


def run(delay, *, num_workers=3, staleness_bound=0, seed=0):
    """A job that gets slow when it has settled; and when that was."""
    job = SimulatedJob(
        [FASTEST / speed for speed in SPEEDS[:num_workers]],
        BATCH,
        staleness_bound=staleness_bound,
        seed=seed,
    )
    job.run(SETTLE_SECONDS)
    since = job.seconds
    job.delay = delay
    job.run(FAULT_SECONDS)
    return job, since


def named(job):
    """Worker to the causes that the verdict names now."""
    return {
        str(found.worker): set(re.findall(rf"\b({'|'.join(CAUSES)}):", found.words))
        for found in job.verdict()
        if found.kind == "straggler" and not found.is_past
    }


def check_sentences(job):
    """No sentence may contradict itself."""
    for _, found in job.diagnosis.news:
        words = str(found)
        if found.kind == "straggler":
            assert found.evidence["speed_ratio"] < 0.85
            assert "costs 0 ms" not in words
        ratios = [value for name, value in found.evidence.items() if name.endswith("_ratio")]
        assert all(ratio >= 0 for ratio in ratios)
        if match := re.match(r"bound by (\w+): (\d+)% of a step", words):
            kind, percent = match[1], int(match[2])
            assert percent == pytest.approx(100 * found.evidence[f"{kind}_ratio"], abs=0.51)
            assert percent >= 25
            assert sum(v for k, v in found.evidence.items() if k != "contention_ratio") < 1.02


MODES = {"synchronous": 0, "staleness 2": 2}


@pytest.mark.parametrize("bound", MODES.values(), ids=MODES)
@pytest.mark.parametrize("cause", COLUMNS)
def test_a_cause_on_one_worker_is_named_soon_and_for_as_long_as_it_lasts(cause, bound):
    """Whatever the part of the step, within ten seconds, and nobody else is blamed."""
    who = list(COLUMNS).index(cause) % len(SPEEDS)
    job, since = run(slower((who, cause)), staleness_bound=bound)
    assert named(job) == {f"n{who}:0": {cause}}
    first = next(at for at, found in job.diagnosis.news if at > since and found.kind == "straggler")
    assert first - since < WORD_SECONDS
    assert not any(found.is_past for found in job.verdict())
    check_sentences(job)


@pytest.mark.parametrize("cause", ["input", "script"])
def test_a_cause_that_comes_and_goes_is_named(cause):
    """A tenth of the steps take eleven times as long: no healthy row hides that."""
    job, _ = run(slower((1, cause), every=10))
    assert named(job) == {"n1:0": {cause}}
    (report,) = [r for r in job.diagnosis.reports if r.is_slow]
    assert report.speed_ratio == pytest.approx(0.5, abs=0.15)
    check_sentences(job)


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("cause", ["script", "evaluation"])
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_what_all_workers_do_now_and_then_is_named_soon_and_not_taken_back(cause, size, seed):
    """Every tenth step; of the rest they spend their time computing. What is told of it is true."""
    everybody = ((who, cause) for who in range(3))
    job, since = run(slower(*everybody, size=size, every=10), seed=seed)
    told = [
        (at - since, found)
        for at, found in job.diagnosis.news
        if at > since and found.kind in (*COLUMNS, "evaluation", "contention", "communication")
    ]
    ((first, found),) = told
    assert found.kind == cause
    assert first < WORD_SECONDS
    assert named(job) == {}
    bound = next(found for found in job.verdict() if found.kind == cause)
    assert bound.evidence[f"{cause}_ratio"] == pytest.approx(size / (1 + size), abs=0.1)
    check_sentences(job)


@pytest.mark.parametrize("every", [4, 10])
@pytest.mark.parametrize("size", [0.25, 1.0])
@pytest.mark.parametrize("cause", ["input", "script"])
def test_what_lasts_is_named_beside_what_comes_and_goes(cause, size, every):
    """A script that has always evaluated now and then gets slow for good, everywhere."""
    everybody = [(who, "evaluation") for who in range(3)]
    now_and_then = slower(*everybody, size=size, every=every)
    lasting = slower(*((who, cause) for who in range(3)), size=2.0)
    job, since = run(now_and_then)
    assert {found.kind for at, found in job.diagnosis.news if at > since} <= {"evaluation"}
    since = job.seconds
    job.delay = lambda *step: now_and_then(*step) | lasting(*step)
    job.run(FAULT_SECONDS)
    first = next(at for at, found in job.diagnosis.news if at > since and found.kind == cause)
    assert first - since < WORD_SECONDS
    assert next(found for found in job.verdict() if found.kind == cause)


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0, 3.0])
def test_one_worker_that_is_slow_now_and_then_is_named_soon(size):
    """Large spells are no accident the second time, smaller ones the third."""
    job, since = run(slower((1, "input"), size=size, every=10))
    assert named(job) == {"n1:0": {"input"}}
    first = next(at for at, found in job.diagnosis.news if at > since and found.kind == "straggler")
    assert first - since < WORD_SECONDS


@pytest.mark.parametrize("cause", COLUMNS)
def test_what_all_workers_lose_alike_binds_the_run_and_makes_no_straggler(cause):
    """The same part takes longer on all of them."""
    job, since = run(slower(*((who, cause) for who in range(3)), size=2.0))
    assert named(job) == {}
    bound = next(found for found in job.verdict() if found.kind in (*COLUMNS, "communication"))
    assert bound.kind == cause
    assert "on every worker" in bound.words
    told = [at for at, found in job.diagnosis.news if at > since and found.kind == cause]
    assert cause == "compute" or told[0] - since < 2 * WORD_SECONDS
    check_sentences(job)


@pytest.mark.parametrize(
    ("first", "second", "num_workers"),
    [
        ("input", "compute", 3),
        ("script", "input", 2),
        ("optimizer", "script", 3),
        ("compute", "transfer", 2),
    ],
)
def test_two_workers_with_different_causes_are_both_named(first, second, num_workers):
    """The trouble of one is no excuse for the other."""
    job, _ = run(slower((0, first), (1, second)), num_workers=num_workers)
    assert named(job) == {"n0:0": {first}, "n1:0": {second}}
    check_sentences(job)


@pytest.mark.parametrize(
    ("first", "second"), [("input", "compute"), ("script", "input"), ("optimizer", "script")]
)
def test_two_causes_on_one_worker_are_both_named_or_none_is(first, second):
    """Not one of them as if it were all."""
    job, _ = run(slower((1, first), (1, second), size=0.7))
    (causes,) = named(job).values()
    assert causes in ({first, second}, {"unknown"})
    check_sentences(job)


@pytest.mark.parametrize("bound", MODES.values(), ids=MODES)
@pytest.mark.parametrize("seed", range(2))
def test_healthy_unequal_workers_are_left_in_peace(seed, bound):
    """Nothing is wrong: nobody is named."""
    job, _ = run(no_delay, staleness_bound=bound, seed=seed)
    assert job.diagnosis.reports == []
    assert next(found for found in job.verdict() if found.kind != "imbalance").kind == "compute"
    check_sentences(job)


def test_a_straggler_whose_share_has_shrunk_is_told_so():
    """It is as slow as before; only the others have taken over a part of its work."""
    job, _ = run(slower((1, "input")))
    (found,) = [found for found in job.verdict() if found.kind == "straggler"]
    assert "is slow since" in found.words
    assert re.search(r"compensated by a smaller share, \d+ samples instead of 7\d", found.words)


def test_what_is_over_is_dropped_live_and_added_up_at_the_end():
    """Two spells of the same worker and cause are one line of the summary."""
    job, _ = run(no_delay)
    step_seconds = []
    slow = slower((1, "script"))
    for delay, seconds in ((slow, FAULT_SECONDS), (no_delay, 40.0), (slow, 15.0), (no_delay, 60.0)):
        step, began = job.step, job.seconds
        job.delay = delay
        job.run(seconds)
        step_seconds.append((job.seconds - began, job.step - step))
    usual = step_seconds[-1][0] / step_seconds[-1][1]
    lost = sum(seconds - steps * usual for seconds, steps in (step_seconds[0], step_seconds[2]))
    assert [found.kind for found in job.verdict()] == ["compute", "imbalance", "memory"]
    (found,) = [f for f in job.verdict(of_whole_run=True) if f.kind == "straggler"]
    assert found.words.startswith("n1:0 was slow 2 times from step")
    assert found.evidence["cost_seconds"] == pytest.approx(lost, rel=0.15)


def test_an_evaluation_that_takes_long_binds_the_run():
    """It is no work of a step, and no fault of the script's own code."""

    def delay(_worker, step, _share):
        return {"evaluation": 1.0} if step % 10 == 0 else {}

    job, _ = run(delay)
    assert named(job) == {}
    bound = next(found for found in job.verdict() if found.kind != "imbalance")
    assert bound.kind == "evaluation"
    check_sentences(job)
