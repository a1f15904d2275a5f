"""Who is left out where not all nodes reach each other."""

from __future__ import annotations

import time
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_hvd.core.full_mesh import left_out

EVEN = dict.fromkeys("abcdef", 1)
CASES = {
    "nothing is broken": (EVEN, [], ""),
    "two nodes: the first stays": ({"a": 1, "b": 1}, ["ab"], "b"),
    "two nodes: the larger stays": ({"a": 1, "b": 2}, ["ab"], "a"),
    "one that nobody reaches": (EVEN, ["ac", "bc", "cd", "ce", "cf"], "c"),
    "two that do not reach each other": (EVEN, ["cd"], "d"),
    "two such pairs": (EVEN, ["cd", "be"], "de"),
    "a partition in unequal parts": (EVEN, ["ae", "af", "be", "bf", "ce", "cf", "de", "df"], "ef"),
    "the larger part has the first node's place": (EVEN, ["ac", "ad", "ae", "af"], "a"),
    "a partition in equal parts": (
        {"a": 1, "b": 1, "c": 1, "d": 1},
        ["ac", "ad", "bc", "bd"],
        "cd",
    ),
    "equal parts of unequal nodes": ({"a": 1, "b": 1, "c": 3}, ["ac", "bc"], "ab"),
    "a ring that is broken everywhere": ({"a": 1, "b": 1, "c": 1}, ["ab", "bc", "ca"], "bc"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rule(name):
    """As many workers as can be; of equal choices the one with the nodes named first."""
    sizes, broken, expected = CASES[name]
    assert left_out(sizes, [(one, other) for one, other in broken]) == set(expected)


def lost(sizes, nodes):
    """Workers, and which nodes: less is better."""
    return sum(sizes[node] for node in nodes), tuple(node in nodes for node in sizes)


@given(st.data())
def test_no_other_choice_is_better(data):
    """Compared with all choices there are."""
    number = data.draw(st.integers(1, 7))
    sizes = {f"n{index}": data.draw(st.integers(1, 3)) for index in range(number)}
    pairs = list(combinations(sizes, 2))
    broken = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    out = left_out(sizes, broken)
    assert all(one in out or other in out for one, other in broken)
    choices = (set(c) for n in range(number + 1) for c in combinations(sizes, n))
    fitting = (c for c in choices if all(one in c or other in c for one, other in broken))
    assert lost(sizes, out)[0] == min(lost(sizes, choice)[0] for choice in fitting)


def test_a_large_cluster_is_decided_at_once():
    """A hundred nodes in two halves, and a hundred of which every third pair is broken."""
    nodes = [f"n{index}" for index in range(100)]
    halves = [(one, other) for one in nodes[:40] for other in nodes[40:]]
    thirds = [(a, b) for i, (a, b) in enumerate(combinations(nodes, 2)) if i % 3 == 0]
    began = time.process_time()
    assert left_out(dict.fromkeys(nodes, 8), halves) == set(nodes[:40])
    out = left_out(dict.fromkeys(nodes, 8), thirds)
    assert all(one in out or other in out for one, other in thirds)
    assert time.process_time() - began < 10
