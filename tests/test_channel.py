"""The channel's frames: records arrive as they were sent; whatever else comes is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd import channel
from hetero_hvd.errors import ChannelError
from hetero_hvd.messages import Heartbeat, ResetRequested, StepsTimed, Stop


def test_records_arrive_as_they_were_sent():
    """Either way, with numbers that JSON cannot say."""
    told = StepsTimed(
        rendezvous_id=1, step=3, epoch=0, loss=math.nan, timings=(), exchange_seconds=math.inf
    )
    found = channel.from_worker(channel.encode(told))
    assert math.isnan(found.loss)
    assert found.exchange_seconds == math.inf
    assert channel.from_driver(channel.encode(Stop(reason="x"))) == Stop(reason="x")


@pytest.mark.parametrize("read", [channel.from_worker, channel.from_driver])
@given(frame=st.one_of(st.binary(max_size=200), st.text(max_size=50)))
def test_garbage_is_refused(read, frame):
    """Whatever arrives instead of a record is a ChannelError, nothing worse."""
    with pytest.raises(ChannelError):
        read(frame)


@pytest.mark.parametrize(
    ("read", "record"),
    [
        (channel.from_worker, ResetRequested(reason="a worker may not ask for this")),
        (channel.from_driver, Heartbeat(applied_steps=1)),
    ],
)
def test_a_record_that_only_the_other_end_may_send_is_refused(read, record):
    """Each end says what it has to say, though both are of the job."""
    with pytest.raises(ChannelError, match="not understood"):
        read(channel.encode(record))
