"""The balancer in real jobs: data that no batch divides, stairs, idle and slowed workers."""

import json
import math
from pathlib import Path

import pytest

from hetero_hvd.messages import BatchPlan, StragglerReported, WorkersJoined
from hetero_hvd.run.records.reader import read_record

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SCRIPT = Path(__file__).with_name("uneven.py")
BATCH = 48
MOST_STEPS_UNTIL_NAMED = 10
"""Its first ten steps with the others are exchanged one by one."""


def run(start_job, seconds, *, max_restarts=0, **more):
    """A job of these workers; gives its folder, its events and what each worker has proved."""
    words = {"batch": BATCH, "seconds": seconds, **more}
    job = start_job(
        names=tuple(worker.split(":")[0] for worker in seconds),
        command=(str(SCRIPT), json.dumps(words)),
        max_restarts=max_restarts,
        checkpoint_seconds=0,
    )
    code, said = job.wait(100), "\n".join(job.output)
    assert code == 0, said
    assert job.summary()["replicas_equal"] is True
    files = job.folder.glob("result-*.json")
    results = {file.stem.removeprefix("result-"): json.loads(file.read_text()) for file in files}
    assert results, said
    check_counts(results.values(), **more)
    return job, [event for _, event in read_record(job.folder / "out").events], results


def check_counts(results, *, samples, epochs, **_):
    """Every sample was used once in each epoch; those of the smaller last batch weigh more."""
    num_left = samples % BATCH
    weights = [1.0] * (samples - num_left) + [BATCH / num_left if num_left else 1.0] * num_left
    for result in results:
        assert result["steps"] == epochs * math.ceil(samples / BATCH)
        assert result["counts"] == pytest.approx([epochs * weight for weight in weights], rel=1e-4)


def test_the_small_last_batch_of_an_epoch_is_never_a_plan(start_job):
    """Nor after a move that was measured to be worse, as on a device whose time goes in stairs."""
    seconds = {"alpha:0": (0.001, 1), "beta:0": (0.002, 1), "gamma:0": (0.0016, 12)}
    _, events, _ = run(start_job, seconds, samples=5 * BATCH + 20, epochs=16)
    plans = [event for event in events if isinstance(event, BatchPlan)]
    assert len({plan.local_batch_sizes for plan in plans}) >= 2, "the balancer did nothing"
    assert all(sum(plan.local_batch_sizes) == BATCH for plan in plans)
    assert all(not size % 1 and size >= 0 for plan in plans for size in plan.local_batch_sizes)


def test_an_evaluation_gives_a_part_to_whom_the_balancer_has_left_none(start_job):
    """A worker without samples does not come to an evaluation in the midst of an epoch."""
    seconds = {"alpha:0": (0.001, 1), "beta:0": (0.001, 1), "gamma:0": (0.1, 1)}
    samples = 80 * BATCH
    _, events, results = run(start_job, seconds, samples=samples, epochs=1, evaluate_every=40)
    plans = [event.local_batch_sizes for event in events if isinstance(event, BatchPlan)]
    assert any(0 in plan for plan in plans), "nobody was idle"
    first_idle = next(place for place, plan in enumerate(plans) if 0 in plan)
    assert 0 not in plans[-1], "an idle worker was left idle"
    assert first_idle < len(plans) - 1
    means = [mean for result in results.values() for mean in result["means"]]
    assert means
    assert means == pytest.approx([(samples - 1) / 2] * len(means))


SLOWER = {
    "and keeps samples": (4.0, False),
    "and keeps few samples": (10.0, False),
    "and loses all of its samples": (60.0, True),
}
"""How many times as long a step takes, and whether the plan leaves the worker without any."""


@pytest.mark.parametrize("case", SLOWER)
def test_who_has_become_slow_is_named_and_its_curve_is_not_kept(start_job, case):
    """What it was before the fault is no longer known, and what it is now is not what it can do."""
    factor, is_idle = SLOWER[case]
    seconds = {"alpha:0": (0.001, 1), "beta:0": (0.001, 1)}
    slower = {"beta:0": (120, factor)}
    job, events, _ = run(start_job, seconds, samples=60 * BATCH, epochs=5, slower=slower)
    reports = [event for event in events if isinstance(event, StragglerReported)]
    told = {str(report.worker): report.is_slow for report in reports}
    slow = {worker for worker, is_slow in told.items() if is_slow}
    assert "beta:0" in slow, "the fault was not seen"
    first = next(report for report in reports if str(report.worker) == "beta:0" and report.is_slow)
    assert 1 / factor / 2 < first.speed_ratio < 2 / factor
    assert first.cause == "compute"
    plans = [event.local_batch_sizes for event in events if isinstance(event, BatchPlan)]
    assert any(0 in plan for plan in plans) == is_idle
    curves = (job.folder / "curves.json").read_text()
    # On a loaded machine the other one may have become slow, too.
    kept = {worker for worker in seconds if worker.partition(":")[0] in curves}
    assert kept == seconds.keys() - slow


def test_who_is_killed_while_it_is_slow_and_comes_back_slow_is_named_again(start_job):
    """It was known how much its steps vary: that takes some exchanges, not sixteen."""
    seconds = {"alpha:0": (0.001, 1), "beta:0": (0.001, 1)}
    faults = {"slower": {"beta:0": (100, 4.0)}, "dies": {"beta:0": 140}}
    job, events, _ = run(start_job, seconds, samples=60 * BATCH, epochs=9, max_restarts=1, **faults)
    assert (job.folder / "has-died-beta-0").exists(), "the fault did not happen"
    (*_, back) = [event for event in events if isinstance(event, WorkersJoined)]
    assert {str(worker) for worker in back.workers} == seconds.keys()
    reports = [e for e in events if isinstance(e, StragglerReported) and str(e.worker) == "beta:0"]
    before, after = ([r for r in reports if (r.step >= back.applied_steps) == on] for on in (0, 1))
    assert before[-1].is_slow, "it was not slow before it died"
    assert after, "it was not named again"
    assert after[0].is_slow
    assert after[0].cause == "compute"
    assert after[0].step - back.applied_steps < MOST_STEPS_UNTIL_NAMED
    assert 1 / 8 < after[0].speed_ratio < 1 / 2
