"""What one exchange of timings says of all workers."""

import math

import msgspec
import pytest

from hetero_hvd.core.step_table import StepTables, with_tables
from hetero_hvd.messages import RunEnded, StepsTimed, StepTiming, WorkerId, WorkersJoined

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)
NAN = math.nan


def joined(rendezvous_id=1, *, shares_vary=False):
    """Two workers with a global batch of 100."""
    return WorkersJoined(
        rendezvous_id=rendezvous_id,
        workers=(ALPHA, BETA),
        applied_steps=0,
        global_batch_size=100,
        capacities=(-1, -1),
        prefetch_steps=0,
        shares_vary=shares_vary,
    )


def row(share, busy=0.1, step=0.2, *, wait=0.0, num_steps=10):
    """A worker's timing; all its own time is forward."""
    return StepTiming(
        num_steps=num_steps,
        local_batch_size=share,
        memory_bytes=NAN,
        data_wait_seconds=0.0,
        transfer_seconds=0.0,
        forward_seconds=busy,
        backward_seconds=0.0,
        comm_wait_seconds=wait,
        optimizer_seconds=0.0,
        step_seconds=step,
    )


def timed(step, *rows, rendezvous_id=1):
    """An exchange."""
    return StepsTimed(
        rendezvous_id=rendezvous_id, step=step, epoch=0, loss=1.0, timings=rows, exchange_seconds=0
    )


def tables_of(*events):
    """The tables of some events."""
    pairs = with_tables((0.0, event) for event in events)
    return [event for _, event in pairs if not isinstance(event, msgspec.Struct)]


def table_of(*rows):
    """That of one exchange, the second of its membership."""
    return tables_of(joined(), timed(9, *rows), timed(19, *rows))[1]


def test_an_exchange_in_numbers():
    """Speed, what the workers could do if nobody waited, and how uneven they are."""
    table = table_of(row(50, 0.05, 0.2), row(50, 0.2, 0.19))
    assert (table.num_steps, table.samples_per_step) == (10, 100)
    assert table.step_seconds == 0.2
    assert table.samples_per_second == 500
    assert table.ideal_samples_per_second == 50 / 0.05 + 50 / 0.2
    assert table.imbalance_ratio == pytest.approx(1.2)
    assert table.is_whole


NOTHING = {"num_steps": 0}
UNKNOWN = {
    "a worker without samples": ((row(100), row(0, 0.0)), 1000, 0, 500),
    "one that was not measured": ((row(50), row(50, NAN)), NAN, NAN, 500),
    "no steps": ((row(50, **NOTHING), row(50, **NOTHING)), NAN, NAN, NAN),
    "no durations": ((row(50, step=NAN), row(50, step=NAN)), 1000, 0, NAN),
    "one that took no step": ((row(50), row(50, **NOTHING)), 500, 0, 250),
}


@pytest.mark.parametrize(("rows", "ideal", "uneven", "speed"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_was_not_measured_is_not_known(rows, ideal, uneven, speed):
    """And a worker without samples counts for nothing: it adds no speed, and does not wait."""
    table = table_of(*rows)
    found = (table.ideal_samples_per_second, table.imbalance_ratio, table.samples_per_second)
    assert found == pytest.approx((ideal, uneven, speed), nan_ok=True)


def test_who_waits_longest_was_ready_first():
    """What even the last one waits is what reduction costs."""
    table = table_of(row(50, wait=0.05), row(50, wait=0.01))
    assert table.lateness_seconds == pytest.approx({ALPHA: 0.0, BETA: 0.04})
    assert table.exposed_comm_seconds == 0.01
    unknown = table_of(row(50, wait=NAN), row(50, wait=NAN))
    assert all(map(math.isnan, unknown.lateness_seconds.values()))
    assert math.isnan(unknown.exposed_comm_seconds)


def test_the_first_of_a_membership_contains_its_start():
    """And so does that of the next one; other memberships have no tables, nor do other events."""
    rows = row(50), row(50)
    found = tables_of(
        timed(9, *rows),
        joined(),
        timed(9, *rows),
        RunEnded(exit_code=0, reason=""),
        timed(19, *rows),
        timed(29, *rows, rendezvous_id=2),
        timed(29, rows[0]),
        joined(2),
        timed(39, *rows, rendezvous_id=2),
    )
    assert [(table.step, table.is_first) for table in found] == [
        (9, True),
        (19, False),
        (39, True),
    ]


def test_the_last_step_of_an_epoch_may_have_fewer_samples():
    """Only chunks of wait-free rounds make a whole of any size."""
    assert not table_of(row(50), row(20)).is_whole
    [_, table] = tables_of(joined(shares_vary=True), *(timed(s, row(50), row(20)) for s in (9, 19)))
    assert table.is_whole
    assert not table.follows_plan


LEFT_OUT = {
    "none": (row(50), 10, 0.2),
    "all but one": (row(50, step=1.1, num_steps=1), 10, 0.29),
    "at another share": (row(20, step=1.1, num_steps=1), 1, 1.1),
    "all": (row(50, num_steps=0), 0, 0.2),
}


@pytest.mark.parametrize(("mine", "num_steps", "seconds"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_steps_that_a_worker_leaves_out_are_put_back(mine, num_steps, seconds):
    """It saw itself change after them: they were as its last ones were."""
    usual = [timed(step, row(50), row(50)) for step in (9, 19, 29)]
    *_, table = tables_of(joined(), *usual, timed(39, mine, row(50)))
    assert table.rows[0].num_steps == num_steps
    assert table.rows[0].step_seconds == pytest.approx(seconds)
    assert table.event.timings[0] == mine
    assert table.rows[1] == row(50)


def test_chunks_are_not_put_back():
    """In wait-free rounds a worker that took fewer steps has done less."""
    usual = [timed(step, row(50), row(50)) for step in (9, 19, 29)]
    *_, table = tables_of(
        joined(shares_vary=True), *usual, timed(39, row(50, num_steps=1), row(50))
    )
    assert table.rows[0].num_steps == 1


def test_a_fold_goes_on_where_it_was():
    """Events may come one by one."""
    tables = StepTables()
    events = [joined(), timed(9, row(50), row(50)), timed(19, row(50), row(50))]
    found = [len(list(with_tables([(0.0, event)], tables))) for event in events]
    assert found == [1, 2, 2]
