"""Orders for traces reach the right workers, and their files the run's folder."""

import gzip
import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hetero_hvd.driver.traces import TraceOrders
from hetero_hvd.errors import UserError
from hetero_hvd.messages import TraceRequested, TraceWritten, WorkerId

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)


@pytest.fixture
def desk():
    """Two workers that are ready and one that is not, and what was sent and said."""
    slots = [
        SimpleNamespace(worker=WorkerId(name, 0), host=f"{name}-0", is_available=name != "gamma")
        for name in ("alpha", "beta", "gamma")
    ]
    sent, said = {}, []
    tracing = TraceOrders(
        lambda: slots, lambda host, order: bool(sent.update({host: order})), said.append
    )
    return SimpleNamespace(tracing=tracing, sent=sent, said=said)


def test_all_or_the_chosen_record(desk):
    """The others hear of it only for Horovod's timeline, which rank 0 writes, whoever that is."""
    words = desk.tracing.start({"steps": 7})
    assert words == "the next 7 steps of alpha:0, beta:0 are recorded into traces/"
    assert desk.sent.keys() == {"alpha-0", "beta-0"}
    desk.sent.clear()
    desk.tracing.start({"workers": ["beta:0"]})
    assert desk.sent == {"beta-0": TraceRequested(num_steps=5, profiler=True, timeline=False)}
    desk.tracing.start({"workers": ["beta:0"], "timeline": True})
    assert desk.sent["alpha-0"] == TraceRequested(num_steps=5, profiler=False, timeline=True)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"workers": ["gamma:0"]}, "gamma:0 is not there; there are: alpha:0, beta:0"),
        ({"workers": ["nobody"]}, "must be NODE:SLOT"),
        ({"workers": []}, "no worker"),
        ({"steps": 201}, "must have steps, 1 to 200"),
        ({"stepps": 2}, "found {'stepps': 2}, must have steps"),
        ("all", "found all, must have steps"),
    ],
)
def test_a_wrong_order_is_one_line_and_goes_nowhere(desk, wish, says):
    """It says what is allowed."""
    with pytest.raises(UserError, match=says):
        desk.tracing.start(wish)
    assert desk.sent == {}


def test_files_are_told(desk):
    """Where it is, how large, and what went wrong."""
    facts = {"worker": ALPHA, "kind": "profiler", "from_step": 3, "num_steps": 2}
    done = TraceWritten(**facts, path="t/a.gz", num_bytes=2_500_000, problem="")
    desk.tracing.observe(0.0, done)
    desk.tracing.observe(0.0, TraceWritten(**facts, path="", num_bytes=0, problem="disk full"))
    assert desk.said == [
        "alpha:0 has recorded steps 3 to 4 (profiler): t/a.gz (2.5 MB)",
        "alpha:0 has recorded steps 3 to 4 (profiler): nothing was kept; disk full",
    ]


@pytest.mark.process
def test_a_running_job_is_traced(start_job):
    """By its settings, by the command line, by a signal: readable files of both kinds."""
    words = ("--trace-steps", "2:4", "--trace-workers", "beta:0", "--trace-timeline")
    job = start_job(
        *words, "--heartbeat-timeout-seconds", "20", names=("alpha", "beta"), script=("400",)
    )
    job.wait_for("2 workers train together", 30)
    for _ in range(2):  # the profile of one worker, the timeline of rank 0
        job.wait_for("has recorded steps 2 to 3")
    vector = [sys.executable, "-m", "hetero_hvd", "trace", "--steps", "3", "--output", "out"]
    asked = subprocess.run(
        [*vector, "--workers", "alpha:0"],
        cwd=job.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.stdout == "the next 3 steps of alpha:0 are recorded into traces/\n", asked.stderr
    one = job.wait_for(r"alpha:0 has recorded steps (\d+) to (\d+) \(profiler\)")
    assert int(one[2]) - int(one[1]) == 2
    job.process.send_signal(signal.SIGUSR2)
    job.wait_for("the next 5 steps of alpha:0, beta:0 are recorded")
    for _ in range(3):  # two workers' profiles and one timeline
        job.wait_for("has recorded")
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    traces = job.folder / "out" / "traces"
    profiles, timelines = traces.glob("*.trace.json.gz"), traces.glob("*.timeline.json")
    contents = [json.loads(gzip.decompress(path.read_bytes())) for path in profiles]
    names = [{event.get("name") for event in found["traceEvents"]} for found in contents]
    assert len(names) == 4
    assert all({"forward", "backward", "comm_wait"} <= found for found in names)
    kinds = [{event.get("name") for event in json.loads(p.read_text())} for p in timelines]
    assert len(kinds) == 2
    assert all({"NEGOTIATE_ALLREDUCE", "GLOO_ALLREDUCE"} <= found for found in kinds)
