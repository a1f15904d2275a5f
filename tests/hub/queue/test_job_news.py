"""What a job's driver tells becomes events of the policy."""

from __future__ import annotations

import json

import msgspec
import pytest

from hetero_hvd.core.queue.jobs import JobRequest, QueuedJob
from hetero_hvd.core.queue.queue_events import JobMeasured, JobProgressed, LinksMeasured
from hetero_hvd.core.view.queued.job_progress import ProgressFacts
from hetero_hvd.core.view.queued.reduction_meter import ReductionFacts
from hetero_hvd.exit_codes import EXIT_KILLED, EXIT_NOT_KEPT, EXIT_TRY_AGAIN
from hetero_hvd.hub.queue.job_news import news_of
from hetero_hvd.hub.queue.job_process import cause_of
from hetero_hvd.hub.queue.queue_cluster import QueueCluster

REDUCED = ReductionFacts(
    nodes=("alpha-0", "beta"),
    seconds=0.5,
    exposed_seconds=0.25,
    busy_seconds=1.0,
    num_bytes=64e6,
    num_samples=64,
)
HERE = ("alpha:0", "beta:0")
LINKS = LinksMeasured(("alpha", "beta"), 0.5 / 64e6, 64e6)

CASES = {
    "nothing": (HERE, None, [], (0.0, 0.0)),
    "two nodes": (HERE, {}, [LINKS], (1e6, 0.25)),
    "all of it is hidden": (HERE, {"exposed_seconds": 0.0}, [LINKS], (1e6, 0.5)),
    "other devices than it has by now": (("alpha:0", "alpha:1"), {}, [], (0.0, 0.0)),
    "fewer than it has": ((*HERE, "alpha:1"), {}, [], (0.0, 0.0)),
    "one twice": (HERE, {"nodes": ("alpha-0", "beta", "beta")}, [], (0.0, 0.0)),
    "a node of nobody": (HERE, {"nodes": ("alpha-0", "gamma")}, [], (0.0, 0.0)),
    "within one node": (
        ("alpha:0", "alpha:1"),
        {"nodes": ("alpha-0", "alpha-1")},
        [LinksMeasured(("alpha",), 0.5 / 64e6, 64e6)],
        (1e6, 0.25),
    ),
}
"""Devices of the job, what is unlike `REDUCED`; what follows for links, and for the job."""


@pytest.fixture(name="cluster")
def two_nodes(tmp_path):
    """A node with two devices and one with one."""
    path = tmp_path / "cluster.yaml"
    nodes = [
        {"name": "alpha", "devices": [0, 1], "device_kind": "x"},
        {"name": "beta", "devices": [], "device_kind": "x"},
    ]
    path.write_text(json.dumps({"nodes": nodes}))
    return QueueCluster(path, {})


def job_with(devices, **fields):
    """A job that runs."""
    request = JobRequest(job="1", user="ann", max_devices=4, **fields)
    return QueuedJob(request=request, number=0, submitted_at_seconds=0.0, devices=devices)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_told_of_reductions(cluster, case):
    """It counts if it is of the devices that the job has, one worker each."""
    devices, unlike, links, reduced = case
    told = None if unlike is None else msgspec.structs.replace(REDUCED, **unlike)
    facts = ProgressFacts(samples_done=10.0, rates={"beta": 3.0}, reductions=told)
    first, *news = news_of(job_with(devices), facts, cluster)
    assert first == JobProgressed("1", 10.0)
    assert [each for each in news if isinstance(each, LinksMeasured)] == links
    (measured,) = [each for each in news if isinstance(each, JobMeasured)]
    assert (measured.bytes_per_unit, measured.hidden_ratio) == reduced
    assert measured.rates == {"x": 3.0}


@pytest.mark.parametrize(
    ("known", "exposed_seconds", "expected"),
    [
        pytest.param((1.05e6, 0.3), 0.25, (1.05e6, 0.3), id="noise"),
        pytest.param((2e6, 0.8), 0.25, (1e6, 0.25), id="another step"),
        pytest.param((1e6, 0.8), 0.0, (1e6, 0.8), id="more was hidden once"),
    ],
)
def test_what_is_known_of_a_job_stays_or_follows(cluster, known, exposed_seconds, expected):
    """No new plan for noise."""
    num_bytes, hidden = known
    job = job_with(HERE, bytes_per_unit=num_bytes, hidden_ratio=hidden, rates={"x": 3.0}, work=50.0)
    told = msgspec.structs.replace(REDUCED, exposed_seconds=exposed_seconds)
    facts = ProgressFacts(
        samples_done=10.0, samples_left=40.0, rates={"beta": 3.0}, reductions=told
    )
    measured = [each for each in news_of(job, facts, cluster) if isinstance(each, JobMeasured)]
    found = [(each.bytes_per_unit, each.hidden_ratio) for each in measured]
    assert found == ([] if expected == known else [expected])


# fmt: off
ENDS = {
    "an exception of the script": (1, "script_error", "script_error"),
    "wrong input": (2, "script_error", "script_error"),
    "the last checkpoint is missing": (EXIT_NOT_KEPT, "not_kept", "script_error"),
    "what may pass": (EXIT_TRY_AGAIN, "node_lost", "node_lost"),
    "a killed driver": (EXIT_KILLED, "preempted", "preempted"),
    "no end was left": ("lost", "node_lost", "node_lost"),
    "an interpreter that is gone": ("not_started", "not_started", "not_started"),
}
"""What has become of a start; what that is of a training, and of a program."""
# fmt: on


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_how_a_start_has_ended_says_why(case):
    """A program's codes are its own; whose training is not kept looks for no error in it."""
    standing, of_a_training, of_a_program = case
    assert cause_of(standing, is_program=False) == of_a_training
    assert cause_of(standing, is_program=True) == of_a_program
