"""Laws: parameters and data are those of one process, whatever the plans."""

from __future__ import annotations

import pytest

from hetero_hvd.core.data.shards import permutation

SIZE, BATCH, SEED = 210, 32, 5

STALE = [
    {"optimizer": "sgd", "epochs": 6, "bound": 1},
    {"optimizer": "adamw", "epochs": 6, "bound": 3},
    {"optimizer": "sgd", "epochs": 6, "bound": 2, "workers": (2, 0), "persistent": True},
]
IN_PROCESS = [{"optimizer": "sgd", "epochs": 9}, {"optimizer": "adamw", "epochs": 9}]
LOADERS = [
    {"optimizer": "sgd", "epochs": 4, "workers": (2,)},
    {"optimizer": "sgd", "epochs": 4, "workers": (2,), "persistent": True, "drop_last": True},
    {"optimizer": "sgd", "epochs": 6, "workers": (2, 0), "persistent": True},
]
"""The last one: the workers load ahead by different numbers of steps."""


def steps_of(case):
    """What each step consumes, from the definition."""
    end = SIZE - SIZE % BATCH if case.get("drop_last") else SIZE
    for epoch in range(case["epochs"]):
        order = permutation(SIZE, seed=SEED, epoch=epoch)
        yield from (
            order[start : min(start + BATCH, end)].tolist() for start in range(0, end, BATCH)
        )


@pytest.mark.process
@pytest.mark.parametrize(
    ("num_workers", "cases"),
    [
        (1, IN_PROCESS),
        pytest.param(2, IN_PROCESS, marks=pytest.mark.matrix),
        (3, IN_PROCESS),
        pytest.param(4, IN_PROCESS, marks=pytest.mark.matrix),
        (2, LOADERS),
        (3, STALE),
    ],
    ids=["1", "2", "3", "4", "loader-processes", "staleness"],
)
def test_changing_plans_change_nothing(run_workers, num_workers, cases):
    """Each step consumes exactly its positions, and training ends where one process ends."""
    ranks = run_workers("trajectory", num_workers, cases=cases)
    for case, results in zip(cases, zip(*ranks, strict=True), strict=True):
        assert max(result["error"] for result in results) <= 1e-5
        assert len({result["checksum"] for result in results}) == 1
        expected = list(steps_of(case))
        assert {result["applied"] for result in results} == {len(expected)}
        consumed = [[] for _ in expected]
        for result in results:  # in rank order, as the slices are
            for step, indices in result["consumed"]:
                consumed[step] += indices
        assert consumed == expected
        if num_workers > 1:
            assert results[0]["plans"] > 5
            sizes = {tuple(step[0] for step in result["consumed"]) for result in results}
            assert len(sizes) > 1  # somebody was left out of some steps
