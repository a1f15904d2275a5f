"""How an advice is told, ranked, and made from verdicts."""

from __future__ import annotations

import math
import shlex

import pytest

from hetero_hvd.core.advice.advice import Advice, Advised, Gain, Worth, ranked
from hetero_hvd.core.advice.measured import measured_placements
from hetero_hvd.core.advice.verdicts import Judgement, limits, recurring
from hetero_hvd.messages import Finding, PlacementTried, WorkerId


@pytest.mark.parametrize(
    ("goal", "low", "high", "words"),
    [
        ("speed", 0.121, 0.184, "12% to 18% faster"),
        ("speed", 0.12, 0.12, "12% faster"),
        ("speed", 0.0, 0.35, "up to 35% faster"),
        ("speed", -0.004, 0.35, "up to 35% faster"),
        ("speed", -0.02, 0.35, "2% slower to 35% faster"),
        ("money", -0.3, 0.1, "30% dearer per sample to 10% cheaper per sample"),
        ("speed", -0.05, -0.02, "2% to 5% slower"),
        ("money", 0.1, 0.2, "10% to 20% cheaper per sample"),
        ("money", -0.2, -0.1, "10% to 20% dearer per sample"),
        ("energy", 0.1, 0.1, "10% less energy per sample"),
        ("energy", -0.1, -0.1, "10% more energy per sample"),
    ],
)
def test_a_gain_is_told_as_an_interval(goal, low, high, words):
    """What may be nothing is told as its most."""
    assert str(Gain(goal=goal, low=low, high=high)) == words


def advice(name, *gains):
    """One of these gains."""
    return Advice(kind="limit", what=name, evidence=("seen",), gains=gains)


SURE = advice("sure", Gain(goal="speed", low=0.1, high=0.2))
MAYBE = advice("maybe", Gain(goal="speed", low=0.0, high=0.9))
CHEAP = advice("cheap", Gain(goal="money", low=0.3, high=0.4), Gain(goal="speed", low=-1, high=-1))
SMALL = advice("small", Gain(goal="speed", low=0.03, high=0.04))
TIGHT = advice("tight")
DEARER = advice(
    "dearer", Gain(goal="speed", low=0.2, high=0.3), Gain(goal="money", low=-0.1, high=0.2)
)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ["tight", "cheap", "dearer", "sure", "maybe"]),
        ({"goal": "money"}, ["tight", "cheap"]),
        ({"goal": "speed"}, ["tight", "dearer", "sure", "maybe"]),
        ({"goal": "energy"}, ["tight"]),
        ({"ratio": 0.0}, ["tight", "cheap", "dearer", "sure", "small", "maybe"]),
        ({"ratio": 0.5}, ["tight", "maybe"]),
    ],
)
def test_what_is_certain_comes_first(options, told):
    """What is worth less than was asked for is left out."""
    found = ranked([SMALL, MAYBE, SURE, TIGHT, DEARER, CHEAP], Worth(**options))
    assert [each.what for each in found] == told


@pytest.mark.parametrize(
    ("idle_minutes", "options", "is_told"),
    [
        (11, {}, True),
        (9, {}, False),
        (9, {"seconds": 300.0}, True),
        (11, {"seconds": 900.0}, False),
        (11, {"ratio": 0.9}, True),
    ],
)
def test_time_in_which_a_device_is_idle_is_worth_something(idle_minutes, options, is_told):
    """By a bound of its own, after what is certain to gain something."""
    idle = Advice(kind="idle", what="idle", evidence=("seen",), idle_seconds=60.0 * idle_minutes)
    told = [each.what for each in ranked([MAYBE, idle, SURE], Worth(**options))]
    assert ("idle" in told) == is_told
    if is_told and not options:
        assert told == ["sure", "maybe", "idle"]


def test_what_was_declined_is_named_only():
    """By its ID; an advice without one cannot be declined."""
    named = Advice(kind="idle", id="idle:b:0", what="b", evidence=("seen",))
    said = Advised(advice=(named, SURE)).without({"idle:b:0", "idle:c", ""})
    assert (said.advice, said.declined) == ((SURE,), ("idle:b:0",))


def finding(kind, *, gain=None, step="", **more):
    """One of a verdict."""
    words = more.pop("words", "seen")
    fields = {"is_complete": True} | more
    return Finding(kind=kind, words=words, max_gain_ratio=gain, next_step=step, **fields)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (finding("communication", gain=0.5, step="accumulate"), "accumulate"),
        (finding("compute"), ""),
        (finding("imbalance", words="balanced"), ""),
        (finding("communication", gain=0.5, step="accumulate", is_complete=False), ""),
        (finding("straggler", gain=0.5, step="look", is_past=True), ""),
        (finding("memory", step="more memory for a"), "more memory for a"),
        (finding("memory"), ""),
        (finding("memory", step="more memory for a", is_complete=False), ""),
    ],
)
def test_a_verdict_that_says_what_to_do_is_an_advice(found, told):
    """What abstains, is over or has nothing to gain is none."""
    assert [each.what for each in limits([found])] == ([told] if told else [])


def slow(node, *, cause="contention", seconds=10.0):
    """It was slow, which cost so much."""
    evidence = {"cost_seconds": seconds}
    return finding("straggler", worker=WorkerId(node, 0), cause=cause, evidence=evidence)


def judged(name, *findings, seconds=110.0):
    """A run of a and b."""
    return Judgement(
        name=name, nodes=frozenset({"a", "b"}), seconds=seconds, findings=tuple(findings)
    )


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([judged("1", slow("a"))], []),
        ([judged("1", slow("a")), judged("2")], []),
        ([judged("1", slow("a")), judged("2", slow("b"))], []),
        ([judged("1", slow("a")), judged("2", slow("a"))], ["look at what else runs on a"]),
        ([judged(f"{i}", *([slow("a")] if i < 2 else [])) for i in range(5)], []),
        (
            [judged("1", slow("a", cause="throttle")), judged("2", slow("a", cause="throttle"))],
            ["raise the CPU quota of a"],
        ),
        ([judged("1", slow("a", cause="throttle")), judged("2", slow("a"))], ["look at a: "]),
        ([judged("1", slow("a", cause="of old")), judged("2", slow("a"))], ["look at a: "]),
    ],
)
def test_who_is_slow_in_many_runs_is_told(runs, told):
    """Not who was so once, nor seldom; of several causes none is named."""
    found = list(recurring(runs))
    assert len(found) == len(told)
    for advice_, words in zip(found, told, strict=True):
        assert advice_.what.startswith(words)
        assert not advice_.gains, "how slow it is next time is not known"
        assert all("9% of the run" in line for line in advice_.evidence)
        assert len(advice_.evidence) == len(runs)


def test_what_a_slow_node_has_cost_is_told_where_it_is_known():
    """A run whose length was not measured gives none, nor one that is shorter than the loss."""
    for seconds in (math.nan, 5.0):
        (found,) = recurring([judged(n, slow("a"), seconds=seconds) for n in "12"])
        assert not any("of the run" in line for line in found.evidence)


def test_a_node_of_another_ones_record_does_nothing_in_a_shell():
    """Its name stands in a command that people copy."""
    name = "b; reboot"
    tried = [
        PlacementTried(nodes=nodes, rounds=(0, 1), samples_per_second=speeds)
        for nodes, speeds in ((("a", name), (100.0, 101.0)), (("a",), (150.0, 151.5)))
    ]
    (advice,) = measured_placements(tried, ["a", name], source="it", command="drain {node} run")
    assert shlex.split(advice.command) == ["drain", name, "run"]
