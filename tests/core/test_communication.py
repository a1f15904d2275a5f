"""Laws of what communication costs and what it says about the network."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.bandwidth import OPERATIONS, bus_factor, size_bucket
from hetero_hvd.core.step_table import StepTable
from hetero_hvd.errors import UserError
from hetero_hvd.messages import StepsTimed, StepTiming, WorkerId, WorkersJoined

TIMES = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8)


def waiting(seconds, num_steps=1):
    """A row of a worker that waited so long."""
    names = ("data_wait", "transfer", "forward", "backward", "optimizer", "step")
    return StepTiming(
        num_steps=num_steps,
        local_batch_size=1,
        memory_bytes=math.nan,
        comm_wait_seconds=seconds,
        **{f"{name}_seconds": 0.0 for name in names},
    )


def table_of(*rows):
    """The table of an exchange of so many workers."""
    event = StepsTimed(
        rendezvous_id=1, step=9, epoch=0, loss=1.0, timings=rows, exchange_seconds=0.0
    )
    workers = tuple(WorkerId("alpha", slot) for slot in range(len(rows)))
    joined = WorkersJoined(
        rendezvous_id=1,
        workers=workers,
        applied_steps=0,
        global_batch_size=len(rows),
        capacities=(-1,) * len(rows),
        prefetch_steps=0,
    )
    return StepTable(event=event, joined=joined, rows=rows, is_first=False)


@given(ready=TIMES, network=st.floats(0.0, 5.0))
def test_lateness_is_when_a_worker_was_ready_behind_the_first(ready, network):
    """No clocks are compared, and the network's own time falls out; it is what nobody hides."""
    end = max(ready) + network
    table = table_of(*(waiting(end - at) for at in ready))
    late = list(table.lateness_seconds.values())
    assert late == pytest.approx([at - min(ready) for at in ready], abs=1e-9)
    assert table.exposed_comm_seconds == pytest.approx(network, abs=1e-9)


def test_who_was_not_measured_is_neither_late_nor_early():
    """NaN stays with the one whose wait is not known."""
    table = table_of(waiting(0.5), waiting(math.nan), waiting(0.1), waiting(9.0, 0))
    late = [table.lateness_seconds.get(worker) for worker in table.workers]
    assert late == pytest.approx([0.0, math.nan, 0.4, None], nan_ok=True)
    assert math.isnan(table_of(waiting(math.nan)).exposed_comm_seconds)


@given(num_bytes=st.integers(0, 2**40))
def test_a_bucket_holds_its_sizes_and_no_half_of_it_does(num_bytes):
    """Powers of two from 1 KiB on."""
    bucket = size_bucket(num_bytes)
    assert bucket.bit_count() == 1
    assert num_bytes <= bucket
    assert bucket == 1024 or num_bytes > bucket // 2


def test_bus_factors_are_those_of_nccl_tests():
    """Two workers: a sum moves each byte once, the others half of it; alone nothing travels."""
    assert [bus_factor(op, 2) for op in OPERATIONS] == [1.0, 0.5, 1.0, 0.5, 0.5]
    assert bus_factor("allreduce", 4) == 1.5
    assert [bus_factor(op, 1) for op in OPERATIONS] == [0.0] * 5
    with pytest.raises(UserError, match="must be one of allreduce"):
        bus_factor("gossip", 2)
