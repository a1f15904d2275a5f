"""The goals of the reproducible mode are judged on what `hetero-hvd run` gives."""

import pytest

from benchmarks.comparisons import reproducible
from benchmarks.comparisons.reproducible import DEFAULT, GRAINS, TASKS
from benchmarks.tables import QUICK


@pytest.mark.parametrize(
    ("grains", "held"),
    [(1.0, 1.04), (2.0, 1.0), (1.0, 1.2)],
    ids=["all well", "natively beyond", "held beyond"],
)
def test_the_goal_is_about_the_mode_as_it_is_started(monkeypatch, grains, held):
    """Both modes with the same instructions; all other ratios are told beside it."""

    def measure(num_rounds, variants, environment=None):
        slower, cost = (2.0, held) if environment else (1.0, grains)
        return {
            name: {
                one: [slower * (1.0 if one == DEFAULT else cost)] * number for one in variants[name]
            }
            for name, number in num_rounds.items()
        }

    monkeypatch.setattr(reproducible, "_measure", measure)
    (table,) = reproducible.reproducible(QUICK, lambda _: None)
    assert all(len(row) == len(table.columns) for row in table.rows)
    titles = [title for title, _, _ in TASKS.values()]
    for number, title in zip(table.numbers, titles, strict=True):
        goal = next(goal for other, _, goal in TASKS.values() if other == title)
        assert number.is_reached is (held <= goal)
        assert number.found.startswith(f"{held:.2f} x; both with all instructions {grains:.2f} x")
        assert number.found.endswith(f"beside all instructions {2 * held:.2f} x")
    row = next(row for row in table.rows if row[1] == f"{GRAINS}, AVX2")
    assert row[3] == f"{held:.2f}"
