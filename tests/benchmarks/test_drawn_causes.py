"""Drawn causes: what is drawn, what counts as right, and that no run is done twice."""

from __future__ import annotations

import threading

import pytest

from benchmarks.causes import drawn
from benchmarks.causes.drawn import (
    BOUNDS,
    FALSE,
    KINDS,
    LARGEST,
    NOTHING,
    SMALLEST,
    SPEEDS,
    Result,
    code_of_judgement,
    draw,
    results_of,
    table_of,
)
from hetero_hvd.messages import CAUSES, FindingKind

SEEDS = range(300)


def result(seed, said=None, *, false=(), idle_ratio=0.5):
    """What was said of a run."""
    return Result(
        seed=seed,
        code=code_of_judgement(),
        idle_ratio=idle_ratio,
        said=said or {},
        false=list(false),
        first_seconds=3.0 if said else None,
    )


def seed_with(condition):
    """The first seed that has drawn such a thing."""
    return next(seed for seed in SEEDS if condition(draw(seed)))


def test_all_that_can_be_drawn_is_drawn():
    """Every kind, every worker, one, two and no faults, within the sizes; the same each time."""
    drawn = [draw(seed) for seed in SEEDS]
    assert drawn == [draw(seed) for seed in SEEDS]
    faults = [
        (who, kind, size) for d in drawn for who, k in d.faults.items() for kind, size in k.items()
    ]
    assert {kind for _, kind, _ in faults} == {*KINDS, *BOUNDS}
    assert {who for who, _, _ in faults} == set(SPEEDS)
    assert all(SMALLEST <= size <= LARGEST for _, _, size in faults)
    assert {sum(map(len, d.faults.values())) for d in drawn if not d.is_everywhere} == {0, 1, 2}
    assert set(KINDS.values()) <= set(CAUSES)
    assert set(BOUNDS.values()) <= set(FindingKind.__args__)


ONE = seed_with(lambda d: d.expected == {"middle": {"input"}})
BOTH = seed_with(lambda d: len(d.faults) == 1 and len(next(iter(d.expected.values()))) == 2)
ALL = seed_with(lambda d: d.expected == {"the run": {"script"}})
NONE = seed_with(lambda d: not d.faults)
(GUILTY,) = draw(BOTH).expected
FIRST, SECOND = sorted(draw(BOTH).expected[GUILTY])


@pytest.mark.parametrize(
    ("seed", "said", "false", "is_right"),
    [
        (ONE, {"middle": ["input"]}, (), True),
        (ONE, {"middle": ["compute"]}, (), False),
        (ONE, {"middle": ["input", "compute"]}, (), False),
        (ONE, {}, (), False),
        (ONE, {"middle": ["input"], "slow": ["input"]}, ("slow",), False),
        (BOTH, {GUILTY: [FIRST, SECOND]}, (), True),
        (BOTH, {GUILTY: [SECOND]}, (), True),
        (BOTH, {GUILTY: ["unknown"]}, (), False),
        (ALL, {"the run": ["script"]}, (), True),
        (ALL, {"the run": ["compute"]}, (), False),
        (NONE, {}, (), True),
        (NONE, {"fast": ["compute"]}, ("fast",), False),
    ],
)
def test_what_counts(seed, said, false, is_right):
    """All that was injected is named, as what it was, and nothing else."""
    found = result(seed, said, false=false)
    assert found.is_right == is_right
    table = table_of([found])
    assert table.numbers[0].found == f"{int(is_right)} of 1"
    assert (FALSE in [row[0] for row in table.rows]) == bool(false)


def test_runs_that_others_disturbed_do_not_count():
    """A loaded machine makes stragglers of healthy workers, and that is true."""
    disturbed = result(ONE, false=("slow",), idle_ratio=0.0)
    table = table_of([result(ONE, {"middle": ["input"]}), result(BOTH), disturbed])
    assert table.numbers[0].found == "1 of 2"
    assert table.numbers[1].is_reached
    assert ("input", "1", "") in [tuple(row) for row in table.rows]
    assert table.columns == ("injected", "input", NOTHING)


def test_a_run_that_is_kept_is_not_run_again(tmp_path, monkeypatch):
    """After an interruption the others follow; a disturbed one, or other code, is run again."""
    calls = []
    others_began = threading.Event()

    def run(seed, _folder):
        calls.append(seed)
        if seed == 3:
            others_began.set()
        if seed == 2 and calls.count(seed) == 1:
            assert others_began.wait(timeout=20)
            raise KeyboardInterrupt
        return result(seed, idle_ratio=0.0 if calls.count(seed) == 1 and seed == 1 else 0.5)

    monkeypatch.setattr(drawn, "run_drawn", run)
    kept = tmp_path / "build" / "kept.jsonl"
    said = []
    with pytest.raises(KeyboardInterrupt):
        list(results_of(range(4), kept, said.append))
    assert [r.seed for r in results_of(range(4), kept, said.append)] == [0, 1, 2, 3]
    assert [calls.count(seed) for seed in range(4)] == [1, 2, 2, 2]
    monkeypatch.setattr(drawn, "code_of_judgement", lambda: -1)
    list(results_of(range(1), kept, said.append))
    assert calls[-1] == 0
