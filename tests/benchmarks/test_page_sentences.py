"""The sentences of a page: whether the first one is right, and whether one denies another."""

from __future__ import annotations

import pytest

from benchmarks.causes.page_sentences import contradictions, is_first_right, sentence_numbers

SLOW = "{}:0 is slow since step 9: {} of its own speed ({}: it is so)"
ONE, ALL, NONE = {"fast": {"input", "compute"}}, {"the run": {"script"}}, {}
FIRST = [
    (ONE, SLOW.format("fast", 0.50, "input"), True),
    (ONE, SLOW.format("fast", 0.50, "compute"), True),
    (ONE, SLOW.format("slow", 0.50, "input"), False),
    (ONE, SLOW.format("fast", 0.50, "unknown"), False),
    (ONE, "bound by compute: 90%", False),
    (ALL, "bound by script: 40%", True),
    (ALL, "bound by compute: 40%", False),
    (ALL, "balanced: other shares would gain 0%", False),
    (NONE, "bound by compute: 90%", True),
    (NONE, SLOW.format("fast", 0.50, "input"), False),
    (NONE, "", False),
]


@pytest.mark.parametrize(("expected", "sentence", "is_right"), FIRST)
def test_the_first_sentence_is_judged(expected, sentence, is_right):
    """It names who is slow and why, or what binds the run where nobody is."""
    assert is_first_right([sentence, "balanced: all is well"], expected) is is_right


DENIED = [
    ([SLOW.format("a", 0.50, "input"), "imbalance left: the others wait for a:0; x"], 0),
    ([SLOW.format("a", 0.50, "input"), "imbalance left: the others wait for b:0; x"], 1),
    ([SLOW.format("a", 0.97, "input"), "bound by compute"], 1),
    ([SLOW.format("a", 0.50, "input"), "a:0 was slow from step 1 to 9"], 1),
    (["a:0 was slow from step 1 to 9", "imbalance left: the others wait for b:0"], 0),
]


@pytest.mark.parametrize(("sentences", "number"), DENIED)
def test_what_denies_another_sentence_is_counted(sentences, number):
    """A worker is slow or was, the others wait for who is, and slow is below its own speed."""
    assert len(contradictions(sentences)) == number
    first, denied = sentence_numbers([True, False], [sentences, []])
    assert (first.found, first.is_reached) == ("1 of 2", False)
    assert (denied.found, denied.is_reached) == (str(number), number == 0)
