"""What is said of collective operations, and of the blocks that a script names."""

import threading

import pytest

import hetero_hvd
from hetero_hvd.errors import UserError
from hetero_hvd.worker.comm.operation_log import GLANCE_SECONDS, OperationLog
from hetero_hvd.worker.timing.named_phases import MAX_NAMES, NamedTimes, named_times


class Clock:
    """Shows what the test sets."""

    now = 0.0

    def __call__(self):
        """The time."""
        return self.now

    def at(self, now):
        """Set it."""
        self.now = now


@pytest.fixture
def clock():
    """Of the log."""
    return Clock()


ENDED = set()


@pytest.fixture
def log(clock):
    """A log on that clock."""
    ENDED.clear()
    return OperationLog(ENDED.__contains__, clock)


def test_an_operation_lasts_until_its_end_is_seen(log, clock):
    """Seen while another is submitted, not when its result is taken."""
    log.launched(1, "allreduce", "gloo", 3000)
    clock.at(1.0)
    ENDED.add(1)
    log.launched(2, "allreduce", "gloo", 4096)
    clock.at(5.0)
    log.done(1)
    log.done(2)
    (both,) = log.take()
    assert (both.count, both.num_bytes, both.size_bucket_bytes) == (2, 7096, 4096)
    assert (both.min_seconds, both.max_seconds, both.total_seconds) == (1.0, 4.0, 5.0)
    assert log.take() == ()


def test_a_glance_sees_the_end_of_a_sum(log, clock):
    """At a gradient that comes after it; glances that follow each other closely cost nothing."""
    log.launched(1, "allreduce", "gloo", 8)
    clock.at(2.0)
    log.poll_if_due()
    ENDED.add(1)
    clock.at(2.0 + GLANCE_SECONDS / 2)
    log.poll_if_due()
    clock.at(3.0)
    log.poll_if_due()
    clock.at(9.0)
    log.done(1)
    assert log.reducing_seconds == 3.0
    assert log.take()[0].total_seconds == 3.0


def test_time_with_sums_under_way_counts_once(log, clock):
    """Sums that lie beside each other are one stretch; a gather is none."""
    for at, handle, op in ((0.0, 1, "allreduce"), (1.0, 2, "allreduce"), (8.0, 3, "allgather")):
        clock.at(at)
        log.launched(handle, op, "gloo", 8)
    clock.at(9.0)
    for handle in (2, 1, 3):
        log.done(handle)
    assert log.reducing_seconds == 9.0
    clock.at(20.0)
    log.launched(4, "allreduce", "gloo", 8)
    clock.at(21.0)
    log.forget()
    log.done(4)
    assert log.reducing_seconds == 10.0
    log.launched(5, "allreduce", "gloo", 8)
    clock.at(23.0)
    log.done(5)
    assert log.reducing_seconds == 12.0
    assert {(o.op, o.count) for o in log.take()} == {("allgather", 1), ("allreduce", 3)}


def test_the_result_of_a_gather_is_what_travelled(log):
    """Its bytes are known at the end only; kinds and sizes are told apart."""
    log.launched(1, "allgather", "gloo", 8)
    log.done(1, 5000)
    (gather,) = log.take()
    assert (gather.num_bytes, gather.size_bucket_bytes) == (5000, 8192)


def test_named_blocks_add_up(monkeypatch):
    """From all threads, nested ones for both names, also when the block raises."""
    monkeypatch.setattr(named_times, "_names", set())
    named_times.take()

    def work():
        with hetero_hvd.phase("outer"), hetero_hvd.phase("inner"):
            pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(ArithmeticError), hetero_hvd.phase("outer"):
        raise ArithmeticError
    seconds, counts = named_times.take()
    assert counts == {"outer": 5, "inner": 4}
    assert seconds["outer"] >= seconds["inner"] > 0.0
    assert named_times.take() == ({}, {})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 65, "at most 64"),
        ("forward", "the trainer times that itself"),
    ],
)
def test_a_silly_name_is_refused(name, words):
    """One line says what is allowed."""
    with pytest.raises(UserError, match=words):
        NamedTimes().admit(name)


def test_the_number_of_names_is_bounded():
    """A name with a counter in it is found out before it fills the records."""
    times = NamedTimes()
    for number in range(MAX_NAMES):
        times.admit(f"batch{number}")
    times.admit("batch0")
    with pytest.raises(UserError, match="put no number"):
        times.admit("batch32")
