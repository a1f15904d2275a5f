"""The queue on real jobs: they shrink, grow, pause and go on, and no crash of the hub loses one."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import pytest

from tests.hub.queue.queue_rig import SLOW, until
from tests.kit.fault_job import FaultJob, trace_in

LONG = {"epochs": 25, "step_seconds": 0.03}
"""Of 8 steps each."""


def results_of(folder):
    """What each worker of a job that finished has proved."""
    return [json.loads(path.read_text()) for path in folder.glob("result-*.json")]


def proves(folder, epochs):
    """Whether each sample was used once in each epoch, and all who finished have one state."""
    found = results_of(folder)
    assert found
    assert all(each["times_used"] == [epochs, epochs] for each in found)
    assert len({each["state"] for each in found}) == 1
    return True


def shrunk_at(hub, since_seconds):
    """When the low job took its first step with one worker from a time on."""
    lines = trace_in(hub.folder / "low")
    return next(line[0] for line in lines if line[0] > since_seconds and line[3] == 1)


@pytest.mark.timeout(900)
def test_a_low_job_shrinks_for_a_high_one_and_grows_back(hub):
    """It is never started again, and no step is lost: its bits are those of a job left alone."""
    same = {"settings": {"reproducible": True}}
    patient = {"num_workers": 2, "patient_from": 16, "patient_seconds": 1.5, "patient_until": "go"}
    (hub.folder / "alone").mkdir()
    alone = FaultJob(hub.folder / "alone", ("gamma",), **same, epochs=12)
    low = hub.submit("low", priority="low", max_devices=2, script=patient | {"epochs": 12}, **same)
    hub.wait_for_step("low", 8, low)
    until(lambda: trace_in(hub.folder / "low")[-1][3] == 2, lambda: hub.log_of(low))
    until(lambda: " left" in hub.job(low)["why"], lambda: hub.job(low)["why"])
    submitted_at = time.monotonic()
    high = hub.submit("high", priority="high", script={"epochs": 3, "step_seconds": 0.02})
    assert len(hub.job(low)["devices"]) == 1
    (hub.folder / "low" / "go").touch()  # from now on it waits for its second worker alone
    assert hub.wait_for_end(high) == f"{high} has ended: it is done"
    assert hub.wait_for_end(low) == f"{low} has ended: it is done"
    workers = [line[3] for line in trace_in(hub.folder / "low") if line[0] > submitted_at]
    shrunk_seconds = shrunk_at(hub, submitted_at) - submitted_at
    sys.stdout.write(f"shrunk after {shrunk_seconds:.2f} s\n")
    assert shrunk_seconds < SLOW
    assert {1, 2} == set(workers)
    assert workers[-1] == 2
    assert hub.job(low)["attempt"] == 1
    assert proves(hub.folder / "low", 12)
    assert proves(hub.folder / "high", 3)
    assert alone.wait() == 0, alone.console
    states = {
        result["state"] for name in ("low", "alone") for result in results_of(hub.folder / name)
    }
    assert len(states) == 1


@pytest.mark.matrix
def test_a_job_that_is_held_goes_on_where_it_was(hub):
    """With all that it has done; and what was edited meanwhile does not reach it."""
    job = hub.submit("held", script=LONG)
    hub.wait_for_step("held", 8, job)
    hub.order("hold", job=job)
    until(lambda: not hub.runners(), lambda: hub.log_of(job))
    assert hub.job(job)["state"] == "held"
    before = max(line[1] for line in trace_in(hub.folder / "held"))
    (hub.folder / "tree" / "train.py").write_text("raise SystemExit('edited')")
    hub.order("release", job=job)
    assert hub.wait_for_end(job) == f"{job} has ended: it is done"
    assert hub.job(job)["attempt"] == 2
    again = [line[1] for line in trace_in(hub.folder / "held")]
    assert len(again) == len(set(again))  # no step was taken twice
    assert max(again) == 200
    assert 8 <= before < 200
    assert proves(hub.folder / "held", 25)


def test_a_killed_job_goes_on_from_its_checkpoint(hub):
    """After a while, as that can heal; others have its devices meanwhile."""
    often = {"checkpoint_seconds": 0.2}
    job = hub.submit("killed", script=LONG, settings=often, retries=1)
    hub.wait_for_step("killed", 40, job)
    (runner,) = hub.runners().values()
    os.kill(runner, signal.SIGKILL)
    until(lambda: hub.job(job)["state"] == "waiting", lambda: hub.job(job))
    assert hub.job(job)["why"].startswith(f"{job} failed once and is tried again in about ")
    other = hub.submit("other", max_devices=2, script={"epochs": 2})
    assert hub.wait_for_end(other) == f"{other} has ended: it is done"
    assert hub.wait_for_end(job) == f"{job} has ended: it is done"
    assert hub.job(job)["attempt"] == 2
    assert proves(hub.folder / "killed", 25)


def kill_again_and_again(hub, num_kills, seed):
    """Kill hubs at odd times, with jobs that run and that wait; then all jobs end well."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    names = {}
    for number in range(num_kills):
        name = f"job{number}"
        names[name] = hub.submit(name, max_devices=2, script={"epochs": 4, "step_seconds": 0.02})
        time.sleep(rng.uniform(0.0, 0.5))
        hub.kill()
        hub.begin()
        if rng.random() < 0.5:  # and once more, in its start
            time.sleep(rng.uniform(0.0, 1.5))
            hub.kill()
            hub.begin()
        until(hub.answers, lambda: "no queue")
    for name, number in names.items():
        assert hub.wait_for_end(number) == f"{number} has ended: it is done", hub.log_of(number)
        assert proves(hub.folder / name, 4)
        steps = [line[1] for line in trace_in(hub.folder / name)]
        assert max(steps) == 32
    starts = sum(hub.job(number)["attempt"] for number in names.values())
    marks = list((hub.folder / "hub" / "queue" / "jobs").glob("*/attempt-*.json"))
    assert len(marks) == starts  # each start that was decided on was begun once
    assert not hub.runners()


def test_killed_hubs_lose_nothing_and_start_nothing_twice(hub):
    """Jobs go on meanwhile, and the next hub finds them."""
    kill_again_and_again(hub, 3, seed=1)


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_twenty_killed_hubs(hub):
    """The same, at other times."""
    kill_again_and_again(hub, 20, seed=2)
