"""What the links of nodes cost, learnt from sets of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.queue.measured.link_book import (
    FIRST_PATIENCE_SECONDS,
    LAST_PATIENCE_SECONDS,
    LEAST_BYTES,
    MAX_SETS,
    LinkBook,
)

FAST, SLOW = 2.0**-33, 2.0**-24
"""Seconds per byte: 8.6 GB/s and 17 MB/s."""

MUCH = 2.0**27
"""Bytes of a step's gradients."""

HISTORIES = {
    "nothing was measured": ([], {}),
    "equal": ([("ab", FAST), ("cd", FAST)], dict.fromkeys("abcd", FAST)),
    "one node, as others are fast without it": (
        [("ab", FAST), ("abs", SLOW)],
        {"a": FAST, "b": FAST, "s": SLOW},
    ),
    "the same in another order": ([("abs", SLOW), ("ab", FAST)], {"a": FAST, "b": FAST, "s": SLOW}),
    "either of two": ([("as", SLOW)], {"a": SLOW, "s": SLOW}),
    "either of two, of which one is cleared": (
        [("as", SLOW), ("ab", FAST)],
        {"a": FAST, "b": FAST, "s": SLOW},
    ),
    "mended": ([("ab", FAST), ("bs", SLOW), ("bs", FAST)], dict.fromkeys("abs", FAST)),
    "mended, as seen from elsewhere": (
        [("ab", FAST), ("bs", SLOW), ("as", FAST)],
        dict.fromkeys("abs", FAST),
    ),
    "damaged": ([("ab", FAST), ("bc", FAST), ("ab", SLOW)], {"a": SLOW, "b": FAST, "c": FAST}),
    "damaged, whoever it is: what was known of both is void": (
        [("ab", FAST), ("cd", FAST), ("ac", SLOW)],
        {"a": SLOW, "c": SLOW},
    ),
    "noise": ([("ab", FAST), ("ab", FAST * 1.1)], {"a": FAST, "b": FAST}),
    "within one node": ([("a", SLOW)], {}),
    "no time": ([("ab", 0.0), ("ac", math.inf), ("ad", math.nan)], {}),
}
"""Sets and their seconds per byte, one after the other; what is known then."""


def book_of(history, num_bytes=MUCH):
    """One that has seen all of it, in as many seconds."""
    book = LinkBook()
    for now, (nodes, seconds) in enumerate(history):
        book.note(nodes, seconds, num_bytes, float(now))
    return book


@pytest.mark.parametrize("case", HISTORIES.values(), ids=HISTORIES.keys())
def test_who_is_to_blame(case):
    """By what all sets together say; and what is kept says the same."""
    history, expected = case
    book = book_of(history)
    costs = book.costs(10.0)
    assert costs.by_node == pytest.approx(expected)
    assert LinkBook(book.facts).costs(10.0) == costs


def test_few_bytes_say_nothing_of_many():
    """Their time is latency: it is no measure of a link, and does not replace one."""
    assert book_of([("ab", SLOW)], LEAST_BYTES - 1).costs(1.0).by_node == {}
    book = book_of([("ab", FAST)])
    assert not book.note("ab", SLOW, LEAST_BYTES, 2.0)
    assert book.costs(3.0).by_node == {"a": FAST, "b": FAST}


def test_what_is_slow_is_tried_again_and_later_each_time():
    """After ten minutes, twenty and so on; a link that is mended then is as good as others."""
    book = book_of([("ab", FAST), ("abs", SLOW)])
    now, waits = 1.0, []
    for _ in range(10):
        book.note("ab", FAST, MUCH, now)
        lapses = book.costs(now).until_seconds
        while "s" in book.costs(lapses).by_node:
            book.note("ab", FAST, MUCH, lapses)
            lapses = book.costs(lapses).until_seconds
        waits.append(lapses - now)
        now = lapses
        book.note("abs", SLOW, MUCH, now)
    doubled = [FIRST_PATIENCE_SECONDS * 2**number for number in range(10)]
    assert waits == pytest.approx([min(each, LAST_PATIENCE_SECONDS) for each in doubled])
    book.note("abs", FAST, MUCH, now + 1e6)
    assert book.costs(now + 1e6).by_node["s"] == FAST


def test_a_link_that_was_good_for_long_is_tried_again_soon_after_it_was_slow_once():
    """The long patience is that of what was confirmed, and not of what has come instead."""
    book, now = LinkBook(), 0.0
    for _ in range(10):
        book.note("ab", FAST, MUCH, now)
        (known,) = book.facts
        now += known.patience_seconds
    assert known.patience_seconds == LAST_PATIENCE_SECONDS
    book.note("ab", SLOW, MUCH, now)
    assert book.costs(now + 0.9 * FIRST_PATIENCE_SECONDS).by_node == {"b": SLOW}
    assert book.costs(now + FIRST_PATIENCE_SECONDS).by_node == {}


def test_of_several_to_blame_one_after_the_other_is_tried_again():
    """So that the next measurement tells which it is."""
    book = book_of([("as", SLOW)])
    assert set(book.costs(0.4 * FIRST_PATIENCE_SECONDS).by_node) == {"a", "s"}
    assert set(book.costs(0.6 * FIRST_PATIENCE_SECONDS).by_node) == {"s"}
    assert set(book.costs(1.1 * FIRST_PATIENCE_SECONDS).by_node) == set()


@pytest.mark.parametrize("ratio", [1.0, 1.05, 1.9])
def test_a_node_is_known_as_long_as_one_of_its_sets_counts(ratio):
    """Also if another one was a bit faster, once: no two measurements are equal."""
    book = book_of([("ab", FAST), ("as", SLOW)])
    now = 2 * FIRST_PATIENCE_SECONDS
    book.note("ab", FAST, MUCH, now)
    book.note("bs", SLOW * ratio, MUCH, now)
    assert book.costs(now + 1.0).by_node["s"] == SLOW


def test_others_are_as_usual_once_enough_is_known():
    """On a network that is slow everywhere nobody moves from node to node to find a better one."""
    assert book_of([("ab", SLOW)]).costs(1.0).of("x") == 0.0
    costs = book_of([("ab", SLOW), ("cd", SLOW)]).costs(1.0)
    assert costs.of("x") == SLOW
    assert costs.bytes_per_second("x") is None
    assert costs.bytes_per_second("a") == pytest.approx(1 / SLOW)


def test_it_stays_small():
    """Whatever sets there are."""
    history = [((f"n{number}", f"m{number}"), FAST) for number in range(MAX_SETS + 10)]
    book = book_of(history)
    assert len(book.facts) == MAX_SETS
    assert "n0" not in book.costs(1.0).by_node


@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from("abcdef"), min_size=1, max_size=4),
            st.sampled_from([FAST, 1.1 * FAST, 8 * FAST, SLOW]),
            st.sampled_from([0.0, 1.0, FIRST_PATIENCE_SECONDS / 3, FIRST_PATIENCE_SECONDS]),
            st.integers(0, 3),
        ),
        max_size=12,
    )
)
def test_what_is_remembered_is_what_would_be_found_anew(history):
    """However often it is asked meanwhile, and whatever lapses."""
    book, now = LinkBook(), 0.0
    for nodes, seconds, wait, asked in history:
        book.note(nodes, seconds, MUCH, now)
        for number in range(asked):
            at = now + number * wait / 3
            assert book.costs(at) == LinkBook(book.facts).costs(at)
        now += wait
        assert book.costs(now) == LinkBook(book.facts).costs(now)
