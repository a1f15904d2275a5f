"""The channel: only the holders of the key are heard, each frame once, in order, one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd import channel
from hetero_hvd.errors import ChannelError
from hetero_hvd.messages import Heartbeat, ResetRequested, Stop, WorkerId

WORKER = WorkerId("alpha", 1)
KEY = channel.new_key()


def connect(driver_key=KEY, worker_key=KEY):
    """Both ends after a handshake: the driver's view of the worker, its session, the worker's."""
    driver_nonce = channel.challenge()
    frame, nonce = channel.answer(worker_key, driver_nonce, worker=WORKER, host="alpha-1.r2")
    hello, proof, of_driver = channel.accept(driver_key, driver_nonce, frame)
    return hello, of_driver, channel.confirm(worker_key, driver_nonce, nonce, proof)


def test_both_ends_prove_that_they_hold_the_key_and_talk_both_ways():
    """The driver learns who the worker is; then records arrive as they were sent, either way."""
    hello, driver, worker = connect()
    assert (hello.worker, hello.host) == (WORKER, "alpha-1.r2")
    for steps in range(3):
        assert driver.open(worker.seal(Heartbeat(applied_steps=steps))).applied_steps == steps
        assert worker.open(driver.seal(Stop(reason=str(steps)))) == Stop(reason=str(steps))


def test_a_worker_without_the_key_is_refused():
    """The driver says who failed to prove itself."""
    with pytest.raises(ChannelError, match="alpha:1 does not hold this job's key"):
        connect(worker_key=channel.new_key())


@pytest.mark.parametrize("proof", [b"", b"x" * channel.MAC_BYTES, "text"])
def test_a_driver_without_the_key_is_refused(proof):
    """The worker does not talk to somebody who merely listens on the driver's port."""
    nonce = channel.challenge()
    _, mine = channel.answer(KEY, nonce, worker=WORKER, host="alpha-1")
    with pytest.raises(ChannelError, match="the driver does not hold"):
        channel.confirm(KEY, nonce, mine, proof)


@pytest.mark.parametrize("nonce", [b"short", b"x" * 17, "x" * 16])
def test_an_odd_challenge_is_refused(nonce):
    """A worker signs nothing but a nonce of the right size."""
    with pytest.raises(ChannelError, match="not a driver"):
        channel.answer(KEY, nonce, worker=WORKER, host="alpha-1")


def test_an_answer_to_another_challenge_is_refused():
    """A handshake that was overheard is of no use for a connection of one's own."""
    overheard, _ = channel.answer(KEY, channel.challenge(), worker=WORKER, host="alpha-1")
    with pytest.raises(ChannelError, match="key"):
        channel.accept(KEY, channel.challenge(), overheard)


def test_an_answer_speaks_for_its_sender_only():
    """Neither the worker nor the host in a signed answer can be changed."""
    nonce = channel.challenge()
    frame, _ = channel.answer(KEY, nonce, worker=WORKER, host="alpha-1")
    for forged in (
        frame.replace(b"alpha\x01", b"betas\x01"),
        frame.replace(b"alpha-1", b"alpha-2"),
    ):
        assert forged != frame
        with pytest.raises(ChannelError, match="key"):
            channel.accept(KEY, nonce, forged)


def refuse(session, frame):
    """The frame is refused, and the session still waits for the genuine one."""
    with pytest.raises(ChannelError, match="signature"):
        session.open(frame)


def test_replayed_reordered_and_reflected_frames_are_refused():
    """Each frame is good once, at its place, in its direction; refusing one changes nothing."""
    _, driver, worker = connect()
    first, second = (worker.seal(Heartbeat(applied_steps=step)) for step in (1, 2))
    refuse(driver, second)
    assert driver.open(first).applied_steps == 1
    refuse(driver, first)
    refuse(worker, first)
    assert driver.open(second).applied_steps == 2


def test_a_frame_of_another_connection_is_refused():
    """The session's key is new for each connection, though the job's is not."""
    (_, _, worker), (_, driver, _) = connect(), connect()
    refuse(driver, worker.seal(Heartbeat(applied_steps=1)))


@given(position=st.integers(0, 200), flip=st.integers(1, 255))
def test_a_changed_frame_is_refused(position, flip):
    """Whichever bit is changed."""
    _, driver, worker = connect()
    frame = bytearray(worker.seal(Heartbeat(applied_steps=7)))
    frame[position % len(frame)] ^= flip
    refuse(driver, bytes(frame))


@given(frame=st.one_of(st.binary(max_size=200), st.text(max_size=50)))
def test_garbage_is_refused(frame):
    """Whatever arrives instead of an answer or a frame is a ChannelError, nothing worse."""
    _, driver, worker = connect()
    refuse(driver, frame)
    refuse(worker, frame)
    with pytest.raises(ChannelError):
        channel.accept(KEY, channel.challenge(), frame)


def test_a_genuine_frame_of_the_wrong_kind_is_refused():
    """A holder of the key that sends what only the other end may send is told so."""
    _, driver, worker = connect()
    with pytest.raises(ChannelError, match="not understood"):
        driver.open(worker.seal(ResetRequested(reason="a worker may not ask for this")))
