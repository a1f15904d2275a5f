"""The records that cross a process boundary."""

from __future__ import annotations

import json
import math
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_hvd import messages
from hetero_hvd.errors import UserError
from hetero_hvd.messages import StepTiming, WorkerId

SIZES = {"num_steps": 1, "local_batch_size": 8, "micro_batch_size": 4}
NODES = st.from_regex(messages.NODE_NAME, fullmatch=True)
WORKERS = st.builds(WorkerId, NODES, st.integers(0, 10_000))
RECORDS = typing.get_args(messages.FromWorker) + typing.get_args(messages.FromDriver)
st.register_type_strategy(WorkerId, WORKERS)
st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))
st.register_type_strategy(float, st.floats())


def plain(value):
    """A record as plain data in which NaN equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, msgspec.Struct):
        return (type(value), *(plain(getattr(value, name)) for name in value.__struct_fields__))
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def any_of(record):
    """Records of a kind."""
    hints = typing.get_type_hints(record)
    fields = {name: st.from_type(hints[name]) for name in record.__struct_fields__}
    return st.fixed_dictionaries(fields).map(lambda values: record(**values))


def finite(value):
    """The same as `plain`, where infinity and what is not told are NaN, too: JSON has `null`."""
    if value is None or (isinstance(value, float) and math.isinf(value)):
        return "NaN"
    if isinstance(value, tuple):
        return tuple(finite(item) for item in value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return finite(plain(value)) if isinstance(value, msgspec.Struct) else plain(value)


for kind in vars(messages).values():
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not WorkerId:
        st.register_type_strategy(kind, any_of)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
@given(data=st.data())
def test_every_record_survives_the_wire(record, data):
    """What is decoded equals what was encoded, NaN and infinities included."""
    sent = data.draw(any_of(record))
    one_of_all = typing.Union[messages.FromWorker, messages.FromDriver]  # noqa: UP007 - of two aliases
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=one_of_all)
    assert plain(received) == plain(sent)


@pytest.mark.parametrize("kind", typing.get_args(messages.Event), ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_event_is_read_back_from_its_line(kind, data):
    """As records keep it: a line of JSON that names its kind."""
    event = data.draw(any_of(kind))
    line = messages.event_to_json(event)
    assert json.loads(line)["type"] == kind.__name__
    assert b"\n" not in line
    assert finite(messages.event_from_json(line)) == finite(event)


ALPHA = WorkerId("alpha", 0)
UNMEASURED = StepTiming(**dict.fromkeys(StepTiming.__struct_fields__, math.nan) | SIZES)
FOUND = messages.Finding(
    kind="straggler", is_complete=True, words="x", worker=ALPHA, evidence={"cost": math.nan}
)


@pytest.mark.parametrize(
    "event",
    [
        messages.Decided(rendezvous_id=1, step=1, action="keep", reason="x"),
        messages.StragglerReported(
            step=1, worker=ALPHA, is_slow=False, speed_ratio=math.nan, cause=None
        ),
        messages.Judged(step=1, findings=(FOUND,)),
        messages.Evaluated(epoch=0, step=1, metrics={"loss": math.nan}),
        messages.StepsTimed(
            rendezvous_id=1,
            step=1,
            epoch=0,
            loss=math.nan,
            timings=(UNMEASURED,),
            exchange_seconds=0.0,
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_was_not_measured_survives_as_json(event):
    """It is null on the line, and NaN again where a number is asked for; None stays None."""
    line = messages.event_to_json(event)
    assert json.loads(line)["type"] == type(event).__name__
    assert b"null" in line
    assert b"\n" not in line
    assert plain(messages.event_from_json(line)) == plain(event)


def test_records_keep_the_names_that_they_were_written_with():
    """Varying shares are `wait_free` on the wire and in records, as in earlier versions."""
    facts = {"rendezvous_id": 1, "workers": (ALPHA,), "applied_steps": 0, "prefetch_steps": 0}
    joined = messages.WorkersJoined(
        **facts, global_batch_size=8, capacities=(-1,), shares_vary=True
    )
    line = messages.event_to_json(joined)
    assert json.loads(line)["wait_free"] is True
    assert messages.event_from_json(line) == joined
    assert not joined.follows_plan


@given(worker=WORKERS)
def test_a_worker_id_reads_what_it_writes(worker):
    """`NODE:SLOT` and back."""
    assert WorkerId.parse(str(worker)) == worker


@pytest.mark.parametrize(
    "text", ["", "alpha", ":0", "alpha:", "alpha:-1", "a/b:0", "-a:0", "alpha:x"]
)
def test_a_malformed_worker_id_is_refused(text):
    """The message shows what was found and what is allowed."""
    with pytest.raises(UserError, match=r"must be NODE:SLOT, for example alpha:0"):
        WorkerId.parse(text)


def test_busy_time_is_the_workers_own():
    """Everything but the wait for others; NaN as soon as a part of it was not measured."""
    row = StepTiming(
        num_steps=1,
        local_batch_size=8,
        memory_bytes=math.nan,
        data_wait_seconds=1.0,
        transfer_seconds=2.0,
        forward_seconds=4.0,
        backward_seconds=8.0,
        comm_wait_seconds=100.0,
        optimizer_seconds=16.0,
        step_seconds=131.0,
    )
    assert row.busy_seconds == 31.0
    assert math.isnan(msgspec.structs.replace(row, forward_seconds=math.nan).busy_seconds)
