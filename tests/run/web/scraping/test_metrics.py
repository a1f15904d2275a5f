"""The driver's exporter, from replayed events."""

import math
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.metric_names import RUN, WORKER
from hetero_hvd.core.view.metrics_page import reference
from hetero_hvd.messages import (
    CheckpointFailed,
    CheckpointWritten,
    CollectivesTimed,
    Crashed,
    Decided,
    Evaluated,
    GuardReported,
    Logged,
    LoggedValue,
    OperationTiming,
    OutOfMemory,
    Recovered,
    RunEnded,
    RunStarted,
    SetAsideReported,
    SourceRead,
    SourcesRead,
    StallReported,
    StepsTimed,
    StepTiming,
    StragglerReported,
    WorkerId,
    WorkerQuarantined,
    WorkersJoined,
    WorkerStarted,
)
from hetero_hvd.run.web.scraping.metrics import FINE_BUCKETS, Metrics

A, B = WorkerId("alpha", 0), WorkerId("beta", 0)


def timing(wait, forward, size):
    """A row of three steps."""
    return StepTiming(
        num_steps=3,
        local_batch_size=size,
        memory_bytes=6e9,
        memory_limit_bytes=8e9,
        data_wait_seconds=0.01,
        transfer_seconds=0.0,
        forward_seconds=forward,
        backward_seconds=0.1,
        comm_wait_seconds=wait,
        optimizer_seconds=0.0,
        step_seconds=0.01 + forward + 0.1 + wait,
        staleness_steps=1.0,
        lag_steps=1.0 if forward > 0.1 else 0.0,
        other_seconds=0.002,
        overlapped_comm_seconds=forward / 3,
    )


def joined(rendezvous_id, *workers):
    """A rendezvous."""
    return WorkersJoined(
        rendezvous_id=rendezvous_id,
        workers=workers,
        applied_steps=0,
        global_batch_size=12,
        capacities=(-1,) * len(workers),
        prefetch_steps=0,
    )


def timed(rendezvous_id, *rows):
    """An exchange."""
    return StepsTimed(
        rendezvous_id=rendezvous_id, step=2, epoch=0, loss=1.0, timings=rows, exchange_seconds=0.0
    )


OPERATIONS = CollectivesTimed(
    rendezvous_id=1,
    step=2,
    num_workers=2,
    operations=(
        OperationTiming.first("allgather", "gloo", 1024, num_bytes=400, seconds=0.001),
        OperationTiming.first("allreduce", "gloo", 2**20, num_bytes=10**6, seconds=0.003).plus(
            num_bytes=10**6, seconds=0.001
        ),
        OperationTiming.first("allreduce", "gloo", 2**21, num_bytes=2 * 10**6, seconds=0.004),
    ),
)
TABLE = timed(1, timing(0.04, 0.09, 8), timing(0.01, 0.12, 4))
START = timed(1, *(replace(row, num_steps=0) for row in TABLE.timings))
"""The first exchange of a membership contains its start."""

ACCURACY = 0.9388888888888889
QUALITY = (
    Evaluated(epoch=0, step=3, metrics={"accuracy": ACCURACY, 'a "b"': math.nan}),
    Logged(
        step=3,
        epoch=0,
        values={
            name: LoggedValue(step=3, count=1, mean=v, minimum=v, maximum=v, last=v)
            for name, v in {"learning_rate": 0.1, "loss": 1.0, "norm": 2.5}.items()
        },
        remaining_steps=10,
    ),
    CheckpointWritten(step=3, path="/x", num_bytes=1, metrics={}, is_best=True),
    CheckpointFailed(step=4, path="/x", error="full"),
    CheckpointFailed(step=5, path="/x", error="full", num_failed=2),
)
HISTORY = (
    RunStarted(run_id="out-1a2b3c4d", command=("x",), nodes=("alpha", "beta"), settings={}),
    WorkerStarted(worker=B, host="beta-0.r1", num_restarts=1),
    joined(1, A, B),
    START,
    TABLE,
    Decided(
        rendezvous_id=1,
        step=2,
        action="move",
        reason="",
        proposed=(7, 5),
        current_seconds=0.2,
        proposed_seconds=0.15,
    ),
    StragglerReported(step=2, worker=B, is_slow=True, speed_ratio=0.5, cause="compute"),
    GuardReported(
        what="drained",
        node="b",
        device="GPU 0",
        words="too hot",
        reason="temperature",
        is_new=True,
        num_drained=1,
    ),
    SetAsideReported(what="tried", step=2, workers=(B,), words="no samples"),
    SourcesRead(
        worker=A,
        step=2,
        sources={"s3://b/train": SourceRead(wait_seconds=0.5, read_seconds=0.4, num_bytes=1e6)},
    ),
    SourcesRead(worker=B, step=2, sources={"s3://b/train": SourceRead(wait_seconds=0.25)}),
    Crashed(worker=B, error="torch.OutOfMemoryError: no", traceback="", user_error=False),
    OPERATIONS,
    OutOfMemory(worker=A, step=3, micro_batch_size=8, next_micro_batch_size=4, error="no"),
    Recovered(worker=A, rendezvous_id=2, cause="fault", seconds=1.0, broadcast=False),
    Recovered(worker=B, rendezvous_id=2, cause="fault", seconds=1.0, broadcast=False),
    *QUALITY,
    RunEnded(exit_code=3, reason="no more"),
)


def replayed(*events):
    """An exporter that has heard them."""
    metrics = Metrics("r")
    for at_seconds, event in with_tables((1000.0, event) for event in events):
        metrics.observe(at_seconds, event)
    return metrics


def values(metrics):
    """(name, labels but run_id) to value."""
    text = metrics.render().page.decode()
    families = text_string_to_metric_families(text)
    return {key(sample): sample.value for family in families for sample in family.samples}


def key(sample):
    """Its name and labels but run_id."""
    others = (value for label, value in sample.labels.items() if label != "run_id")
    return sample.name.removeprefix("hetero_hvd_"), *others


def test_every_name_of_the_table_is_exported():
    """A run in which everything happens has a sample of each family."""
    text = replayed(*HISTORY).render()[0].decode()
    names = {family.name for family in text_string_to_metric_families(text) if family.samples}
    assert names == {f"hetero_hvd_{entry.name}" for entry in (*RUN, *WORKER)}


def test_the_numbers_are_those_of_the_events():
    """Counts are exact, the late worker is the one with the shortest wait, resets count once."""
    found = values(replayed(*HISTORY))
    assert found["steps_total",] == 3
    assert found["samples_total",] == 36
    assert found["worker_lateness_seconds", "alpha:0"] == 0
    assert found["worker_lateness_seconds", "beta:0"] == pytest.approx(0.03)
    assert found["worker_speed_ratio", "beta:0"] == pytest.approx((4 / 0.23) / (8 / 0.2))
    assert found["exposed_comm_seconds_total",] == pytest.approx(0.03)
    assert found["overlapped_comm_seconds_total",] == pytest.approx((0.09 + 0.12) / 2)
    assert found["phase_duration_seconds_sum", "other"] == pytest.approx(0.004)
    assert found["planned_gain_ratio",] == pytest.approx(0.25)
    assert found["stragglers", "compute"] == 1
    assert found["resets_total", "fault"] == 1
    assert found["worker_memory_headroom_ratio", "beta:0"] == pytest.approx(0.25)
    assert found["oom_total",] == 2
    assert found["checkpoint_failures_total",] == 2
    assert found["set_aside_workers",] == 1
    assert found["data_source_wait_seconds_total", "s3://b/train"] == 0.75
    assert found["data_source_bytes_total", "s3://b/train"] == 1e6
    assert found["restarts_total",] == 1
    assert found["run_info", "out"] == 1
    assert (found["run_active",], found["run_exit_code",]) == (0, 3)
    assert found["last_step_timestamp_seconds",] == 1000


@pytest.mark.parametrize(
    "event",
    [
        WorkerStarted(worker=B, host="beta-0.r2", num_restarts=0),
        WorkerQuarantined(worker=B, reason="drained"),
    ],
)
def test_who_is_set_aside_is_counted_until_it_starts_or_is_given_up(event):
    """Who stays away for another reason is not set aside."""
    assert values(replayed(*HISTORY, event))["set_aside_workers",] == 0


@pytest.mark.parametrize(
    "event",
    [
        WorkerStarted(worker=B, host="beta-0.r2", num_restarts=1),
        RunStarted(run_id="out", command=(), nodes=(), settings={}),
    ],
)
def test_who_is_slow_is_counted_until_it_begins_anew(event):
    """Its process does, or another start of the run."""
    assert values(replayed(*HISTORY, event))["stragglers", "compute"] == 0


def test_how_good_a_run_is_is_exported_with_all_digits():
    """Evaluations, learning rates and logged values by their names; what is no number is absent."""
    found = values(replayed(*HISTORY))
    assert found["evaluation", "accuracy"] == ACCURACY
    assert found["learning_rate", "0"] == 0.1
    assert found["logged", "norm"] == 2.5
    assert (found["loss",], found["epoch",], found["remaining_seconds",]) == (1.0, 0, 0)
    assert found["progress_ratio",] == 3 / 13
    assert found["samples_per_second",] == pytest.approx(12 / 0.24)
    assert (found["checkpoint_step",], found["best_checkpoint_step",]) == (3, 3)
    assert ("evaluation", 'a "b"') not in found
    assert ("logged", "loss") not in found


def rates(**found):
    """Learning rates, as they are told."""
    told = {
        name.replace("_of_", "."): LoggedValue(
            step=3, count=1, mean=v, minimum=v, maximum=v, last=v
        )
        for name, v in found.items()
    }
    return Logged(step=3, epoch=0, values=told, remaining_steps=-1)


RATES = {
    "one": ([rates(learning_rate=0.1)], {"0": 0.1}),
    "two": ([rates(learning_rate_of_0=0.1, learning_rate_of_1=0.2)], {"0": 0.1, "1": 0.2}),
    "two that become alike": (
        [rates(learning_rate_of_0=0.1, learning_rate_of_1=0.2), rates(learning_rate=0.3)],
        {"0": 0.3},
    ),
    "one that becomes two": (
        [rates(learning_rate=0.3), rates(learning_rate_of_0=0.1, learning_rate_of_1=0.2)],
        {"0": 0.1, "1": 0.2},
    ),
    "none is told meanwhile": (
        [rates(learning_rate_of_0=0.1, learning_rate_of_1=0.2), rates(norm=1.0)],
        {"0": 0.1, "1": 0.2},
    ),
}


@pytest.mark.parametrize("case", RATES)
def test_learning_rates_are_those_of_now(case):
    """A group that has become like the others has no series of its own any more."""
    told, expected = RATES[case]
    found = values(replayed(*HISTORY[:3], *told))
    assert {name[1]: v for name, v in found.items() if name[0] == "learning_rate"} == expected


STATES = {
    "starting": (),
    "training": (joined(1, A, B),),
    "stalled": (joined(1, A, B), StallReported(step=1, is_stalled=True, seconds=9.0)),
    "ended": (joined(1, A, B), RunEnded(exit_code=0, reason="done")),
}


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_a_run_is_one_of_four(state):
    """1 for that one, 0 for the others."""
    found = values(replayed(HISTORY[0], *STATES[state]))
    assert {name[1]: v for name, v in found.items() if name[0] == "run_state"} == {
        one: float(one == state) for one in STATES
    }


def test_what_can_be_counted_begins_at_zero():
    """Or Prometheus, which knows a counter from its first sample on, would miss the first event."""
    found = values(replayed(HISTORY[0], HISTORY[2]))
    for name in ("move", "roll_back", "try_again"):
        assert found["balancer_decisions_total", name] == 0
    assert [found["resets_total", reason] for reason in ("fault", "membership")] == [0, 0]
    for name in ("oom", "restarts", "checkpoint_failures"):
        assert found[f"{name}_total",] == 0
    assert found["run_active",] == 1
    assert ("run_exit_code",) not in found


def test_operations_are_counted_by_kind_and_size():
    """Bytes and counts add up; bus bandwidth of a sum of two is its bytes / its time."""
    found = values(replayed(*HISTORY, OPERATIONS))
    assert found["collective_operations_total", "gloo", "allreduce", str(2**20)] == 4
    assert found["collective_bytes_total", "gloo", "allreduce"] == 8e6
    assert found[
        "collective_duration_seconds_sum", "gloo", "allreduce", str(2**20)
    ] == pytest.approx(0.004)
    speed = "collective_bus_bandwidth_bytes_per_second"
    assert found[speed, "gloo", "allreduce"] == pytest.approx(4e6 / 0.008)
    assert found[speed, "gloo", "allgather"] == pytest.approx(400 / 2 / 0.001)


def test_what_is_unknown_is_absent():
    """Before any step there is no speed; NaN and a lost worker take their series away."""
    assert not any(
        name.startswith(("worker_busy", "load_", "goodput", "last_step"))
        for name, *_ in values(replayed(*HISTORY[:3]))
    )
    metrics = replayed(*HISTORY[:5], timed(1, timing(0.04, 0.09, 8), timing(0.0, math.nan, 4)))
    assert ("worker_busy_seconds", "beta:0") not in values(metrics)
    assert ("worker_busy_seconds", "alpha:0") in values(metrics)
    metrics.observe(1001.0, joined(2, A))
    assert not any("beta:0" in labels for _, *labels in values(metrics))


def test_the_table_of_another_rendezvous_says_nothing():
    """A late table is not put down to the present members."""
    found = values(replayed(*HISTORY[:3], joined(2, A), TABLE))
    assert ("steps_total",) not in found


ACCEPTED = {
    "nothing": ("", "text/plain"),
    "prometheus 2.42": (
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text",
    ),
    "prometheus 3": (
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.2",
        "application/openmetrics-text",
    ),
    "a browser": ("text/html,application/xhtml+xml,*/*;q=0.8", "text/plain"),
    "a version in words": ("text/plain;version=abc", "text/plain"),
    "half in words": ("application/openmetrics-text;version=a.b.c", "text/plain"),
    "no number": ("application/openmetrics-text;version=", "text/plain"),
    "two versions": ("application/openmetrics-text;version=1.0.0;version=abc", "text/plain"),
    "one of them in words": (
        "application/openmetrics-text;version=x,application/openmetrics-text;version=1.0.0",
        "application/openmetrics-text",
    ),
    "a later version": ("application/openmetrics-text;version=9999", "text/plain"),
    "a later one, or this": (
        "application/openmetrics-text;version=2.0.0,application/openmetrics-text;version=1.0.0",
        "application/openmetrics-text",
    ),
    "any version": ("application/openmetrics-text", "application/openmetrics-text"),
    "an early version": ("application/openmetrics-text;version=0.0.1", "text/plain"),
    "none of that": ("application/openmetrics-text; q=0, text/plain", "text/plain"),
    "none of that, exactly": ("application/openmetrics-text;version=1.0.0;Q=0.000", "text/plain"),
    "no quality": ("application/openmetrics-text;q=", "application/openmetrics-text"),
    "nothing but signs": (";=;,,;;version", "text/plain"),
}


@pytest.mark.parametrize("scraper", ACCEPTED)
def test_a_scraper_is_told_in_the_form_that_it_accepts(scraper):
    """The same numbers in each; exemplars are in OpenMetrics alone."""
    accept, media = ACCEPTED[scraper]
    metrics = replayed(*HISTORY)
    page, told_media = metrics.render(accept)
    is_open = media == "application/openmetrics-text"
    parse = openmetrics_families if is_open else text_string_to_metric_families
    samples = [each for family in parse(page.decode()) for each in family.samples]
    assert told_media.startswith(f"{media}; version={'1.0.0' if is_open else '0.0.4'};")
    assert {key(each): each.value for each in samples} == values(metrics)
    exemplars = [(each.name, each.exemplar.labels) for each in samples if each.exemplar]
    step = ("hetero_hvd_step_duration_seconds_bucket", {"step": "2", "worker": "beta:0"})
    assert (exemplars.count(step) == 1) == bool(exemplars) == is_open


def test_a_name_too_long_for_an_exemplar_is_left_out():
    """OpenMetrics allows 128 characters; the observation counts."""
    long = WorkerId("n" * 120, 0)
    metrics = replayed(HISTORY[0], joined(1, A, long), START, TABLE)
    assert values(metrics)["step_duration_seconds_count",] == 1
    page = metrics.render(ACCEPTED["prometheus 2.42"][0])[0].decode()
    assert {
        each.exemplar.labels["worker"]
        for family in openmetrics_families(page)
        for each in family.samples
        if each.exemplar
    } == {"alpha:0"}


def test_the_buckets_of_steps_are_fine():
    """A quantile of any step from 1 ms to 80 s is told within 28 %."""
    assert (FINE_BUCKETS[0], FINE_BUCKETS[-1]) == (0.001, 80.0)
    assert all(1.2 < high / low <= 1.28 for low, high in pairwise(FINE_BUCKETS))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt install prometheus")
def test_promtool_finds_nothing_to_say():
    """The page follows Prometheus' conventions."""
    page = replayed(*HISTORY).render()[0]
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_reference_is_the_generated_one():
    """docs/reference/metrics.md is what the table of names says."""
    page = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"
    assert page.read_text(encoding="utf-8") == reference()
