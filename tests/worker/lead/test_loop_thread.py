"""Whoever gives work to the thread of the record never waits, and never hears of its errors."""

import threading

import pytest

from hetero_hvd.worker.lead.loop_thread import LoopThread

PATIENCE_SECONDS = 30


async def nothing():
    """At the beginning, or at the end."""


def test_work_is_done_in_order_and_all_of_it_before_the_end():
    """Also what was given before the thread has begun."""
    may_begin, done = threading.Event(), []

    async def begin():
        assert may_begin.wait(PATIENCE_SECONDS)
        done.append("begun")

    async def end():
        done.append("ended")

    thread = LoopThread("a test", begin=begin, end=end)
    for number in range(100):
        thread.put(lambda number=number: done.append(number))
    may_begin.set()
    thread.close()
    assert thread.join(PATIENCE_SECONDS)
    assert done == ["begun", *range(100), "ended"]


def test_a_thread_that_stands_holds_up_nobody(caplog):
    """What is too much is counted and told once, and what waits is done when it goes on."""
    stands, may_go_on, done = threading.Event(), threading.Event(), []

    def stand():
        stands.set()
        assert may_go_on.wait(PATIENCE_SECONDS)

    thread = LoopThread("a test", begin=nothing, end=nothing, max_waiting=10)
    thread.put(stand)
    assert stands.wait(PATIENCE_SECONDS)
    for number in range(25):
        thread.put(lambda number=number: done.append(number))
    assert thread.num_lost == 15
    assert sum("does not keep up" in record.message for record in caplog.records) == 1
    may_go_on.set()
    thread.close()
    assert thread.join(PATIENCE_SECONDS)
    assert done == list(range(10))
    assert "missed 15 events" in caplog.text


@pytest.mark.parametrize("place", ["begin", "work", "end"])
def test_an_error_is_told_and_the_rest_is_done(caplog, place):
    """Wherever it is raised."""
    done = []

    def fail():
        raise ZeroDivisionError

    async def fail_there():
        fail()

    begin = fail_there if place == "begin" else nothing
    end = fail_there if place == "end" else nothing
    thread = LoopThread("a test", begin=begin, end=end)
    for _ in range(3 if place == "work" else 0):
        thread.put(fail)
    thread.put(lambda: done.append(1))
    thread.close()
    assert thread.join(PATIENCE_SECONDS)
    assert done == [1]
    told = [record for record in caplog.records if "please report it" in record.message]
    assert len(told) == 1


def test_what_comes_after_the_end_is_dropped():
    """Without a word: it is nobody's fault."""
    thread = LoopThread("a test", begin=nothing, end=nothing)
    thread.close()
    thread.close()
    assert thread.join(PATIENCE_SECONDS)
    thread.put(lambda: pytest.fail("is done after the end"))
