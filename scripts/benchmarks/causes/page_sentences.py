"""Whether the page of a run says in its first sentence what was injected, and denies nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarks.numbers import Number

GOAL_RATIO = 0.95
"""Goal: the part of the first sentences that is right."""

_SLOW = re.compile(r"(\w+):(\d+) is slow since [^:]*: (\d+\.\d+) of its own speed")
_PAST = re.compile(r"(\w+):(\d+) was slow")
_WAIT = re.compile(r"imbalance left: the others wait for (\w+):(\d+)")
WELL_RATIO = 0.95
"""Who has so much of its own speed is not slow."""


def is_first_right(sentences: Sequence[str], expected: Mapping[str, set[str]]) -> bool:
    """Whether the first one says who is slow and why; where nobody is, what binds the run.

    Args:
        sentences: Of the page, in their order.
        expected: Node, or `the run`, to the causes that may be named; empty: all are well.
    """
    first = next(iter(sentences), "")
    slow = _SLOW.match(first)
    if not expected or "the run" in expected:
        kinds = expected.get("the run", {""})
        return not slow and any(first.startswith(f"bound by {kind}") for kind in kinds)
    causes = expected.get(slow[1], set()) if slow else set()
    return any(f"({cause}: " in first for cause in causes)


def contradictions(sentences: Sequence[str]) -> list[str]:
    """Those that deny another one, or themselves."""
    now = [found for line in sentences if (found := _SLOW.match(line))]
    slow = {found.group(1, 2) for found in now}
    wrong = [found.string for found in now if float(found[3]) >= WELL_RATIO]
    for line in sentences:
        past, wait = _PAST.match(line), _WAIT.match(line)
        is_both = past is not None and past.group(1, 2) in slow
        if is_both or (wait is not None and slow and wait.group(1, 2) not in slow):
            wrong.append(line)
    return wrong


def sentence_numbers(is_right: Sequence[bool], pages: Sequence[Sequence[str]]) -> list[Number]:
    """What is counted over all runs.

    Args:
        is_right: Of each run, whether its first sentence is.
        pages: The sentences of each.
    """
    num_denied = sum(len(contradictions(page)) for page in pages)
    return [
        Number(
            quantity="first sentences of the page that are right",
            goal=f">= {GOAL_RATIO:.0%}",
            found=f"{sum(is_right)} of {len(is_right)}",
            is_reached=sum(is_right) >= GOAL_RATIO * len(is_right),
        ),
        Number(
            quantity="sentences of the page that deny another one",
            goal="0",
            found=str(num_denied),
            is_reached=not num_denied,
        ),
    ]
