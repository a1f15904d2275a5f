"""Workers measure themselves before the first step, and nothing of it stays."""

import pytest

EVEN, UNEVEN, LAST = [12, 12], [16, 8], [18, 6]

WAYS = {
    "as handed out": ({}, 2),
    "moved by the script": ({"way": "changed"}, 1),
    "an own loop": ({"way": "own_loop"}, 0),
    "micro-batches": ({"options": {"micro_batch_size": 2}}, 2),
    "equal micro-batches": ({"options": {"micro_batch_size": 2, "equal_micro_batches": True}}, 2),
    "accumulation, a scaler": ({"scales": True, "options": {"accumulation_steps": 2}}, 2),
    "reproducible": ({"options": {"reproducible": True, "grain": 2}}, 0),
    "passes of few samples fail": ({"fewest": 6}, 2),
    "a slow device": ({"num_slow": 3}, 2),
    "two models": ({"way": "two_models"}, None),
    "staleness": ({"options": {"staleness_bound": 1}}, 2),
    "the memory holds less": ({"holds": 3}, 2),
    "a worker without a part": ({"spare": True}, 2),
}
"""What the script does, and how it comes out: None: nobody is asked; 0: nothing can be measured;
1: measured, and the step under way keeps its parts; 2: the first step has the new shares."""

MEASURED = {
    "as handed out": [[[3], [3]], [[8], [4]]],
    "equal micro-batches": [[[4], [4]], [[8], [4]]],
    "a slow device": [[[2], [2]], [[3], [3]]],
    "passes of few samples fail": [[[], []], [[], []]],
}
"""Samples of each worker, in each of the two measurements."""


TOLD = {
    "passes of few samples fail": "before its first step: 2 samples are too few",
    "micro-batches": "before its first step: Expected more than 1 value per channel",
}
"""Why nothing could be measured at first, which is said once. Three samples in micro-batches of two
leave one alone, which no batch norm takes."""


def runs_of(way):
    """Name to the settings of a run: that with measurements; that with the last plan alone."""
    changes, outcome = WAYS[way]
    settings = {"way": "step"} | changes
    shares = [[24, 0], [16, 8], [24, 0]] if settings.pop("spare", 0) else [EVEN, UNEVEN, LAST]
    found = {way: settings | {"shares": shares, "ratios": [0.25, 0.5]}}
    if outcome == 2:
        found[f"{way}, alone"] = settings | {"shares": shares[2:], "ratios": []}
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, start_workers):
    """What each of two workers has found in all runs, one after the other."""
    runs = {name: run for way in WAYS for name, run in runs_of(way).items()}
    return start_workers(tmp_path_factory.mktemp("calibrated"), "calibrated", 2, runs=runs)


@pytest.mark.parametrize("way", WAYS)
def test_training_is_what_it_would_be_with_the_last_plan_alone(ranks, way):
    """Losses, parameters, buffers and random numbers, bit for bit, whatever was measured before."""
    outcome = WAYS[way][1]
    found = [rank[way] for rank in ranks]
    asked = found[0]["answers"]
    if outcome is None:
        assert asked == []
    elif outcome == 0:
        assert asked == [[[], []], [[], []]]
    else:
        assert asked == MEASURED.get(way, asked)
        assert any(map(any, asked)) == bool(found[0]["seconds"])
        assert min(found[0]["seconds"], default=1) > 0
    for each in found:
        assert len(each["told"]) == (way in TOLD)
        assert all(TOLD[way] in words for words in each["told"])
    if way == "equal micro-batches":
        assert {size for each in found for size in each["passes"]} == {2}
    if outcome == 2:
        alone = [rank[f"{way}, alone"] for rank in ranks]
        for one, other in zip(found, alone, strict=True):
            for key in ("losses", "drawn", "scale", "state"):
                assert one[key] == other[key], key
            assert one["sizes"][1:] == other["sizes"][1:]  # in the first, within the step
    else:
        first = [each["sizes"][0] if each["sizes"] else 0 for each in found]
        assert first == runs_of(way)[way]["shares"][0]
