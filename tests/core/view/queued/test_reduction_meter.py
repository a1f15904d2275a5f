"""What a job's reductions take, from the events of its run."""

from __future__ import annotations

import math

import pytest

from hetero_hvd.core.step_table import with_tables
from hetero_hvd.core.view.queued.reduction_meter import FEWEST_TABLES, ReductionMeter
from hetero_hvd.messages import (
    CollectivesTimed,
    OperationTiming,
    StepsTimed,
    StepTiming,
    WorkerId,
    WorkersJoined,
)

WORKERS = (WorkerId(node="alpha", slot=0), WorkerId(node="beta", slot=0))


def joined(number, workers=WORKERS, **more):
    """These workers have met."""
    return WorkersJoined(
        rendezvous_id=number,
        workers=workers,
        applied_steps=0,
        global_batch_size=64,
        capacities=(-1,) * len(workers),
        prefetch_steps=0,
        **more,
    )


def timed(number, step, *waits, hidden=0.25, staleness=math.nan):
    """Each worker computes for half a second and waits; a wait of None: not measured."""
    rows = tuple(
        StepTiming(
            num_steps=10,
            local_batch_size=64 // len(waits),
            memory_bytes=math.nan,
            data_wait_seconds=0.0,
            transfer_seconds=0.0,
            forward_seconds=0.2,
            backward_seconds=0.3,
            comm_wait_seconds=math.nan if wait is None else wait,
            optimizer_seconds=0.0,
            step_seconds=2.0,
            overlapped_comm_seconds=hidden,
            staleness_steps=staleness,
        )
        for wait in waits
    )
    return StepsTimed(
        rendezvous_id=number, epoch=0, step=step, loss=0.0, timings=rows, exchange_seconds=0.0
    )


def reduced(number, step, num_bytes):
    """So many bytes since the last such message, with a broadcast that is no reduction."""
    first = {"backend": "gloo", "size_bucket_bytes": 1024, "num_bytes": num_bytes, "seconds": 1.0}
    return CollectivesTimed(
        rendezvous_id=number,
        step=step,
        num_workers=2,
        operations=(
            OperationTiming.first("allreduce", **first),
            OperationTiming.first("broadcast", **first),
        ),
    )


def told(*events):
    """What a meter says after these events."""
    meter = ReductionMeter()
    for _, event in with_tables((0.0, each) for each in events):
        meter.observe(event)
    return meter.facts


def whole(number=1, waits=(0.75, 0.5), **more):
    """Events of a membership of which enough is known."""
    steps = [timed(number, 10 * n + 9, *waits, **more) for n in range(FEWEST_TABLES + 1)]
    return [joined(number), *steps, reduced(number, 19, 1e9), reduced(number, 39, 20_000)]


def test_it_is_what_the_last_worker_sees():
    """The others wait for that one, too; and a start is no part of it."""
    facts = told(*whole())
    assert facts.nodes == ("alpha", "beta")
    assert (facts.seconds, facts.exposed_seconds, facts.busy_seconds) == (0.75, 0.5, 0.5)
    assert (facts.num_bytes, facts.num_samples) == (1000.0, 64)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="nothing"),
        pytest.param(whole()[:-1], id="bytes of the start alone"),
        pytest.param([*whole()[:3], *whole()[-2:]], id="few exchanges"),
        pytest.param(whole(waits=(None, None)), id="waits that were not measured"),
        pytest.param(whole(waits=(0.5, None)), id="one that was not"),
        pytest.param(whole(hidden=math.nan), id="what is hidden was not measured"),
        pytest.param(whole(staleness=1.0), id="steps that overtake each other"),
        pytest.param([joined(1, shares_vary=True), *whole()[1:]], id="shares that vary"),
        pytest.param(whole(waits=(0.0, 0.0), hidden=0.0), id="nobody else"),
        pytest.param([*whole(), joined(2)], id="others have come"),
        pytest.param([*whole(), joined(2), reduced(1, 49, 9), reduced(1, 59, 9)], id="late news"),
    ],
)
def test_what_was_not_measured_is_not_told(events):
    """Neither is what was measured of other workers."""
    assert told(*events) is None
