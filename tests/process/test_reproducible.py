"""The reproducible mode: one fingerprint, whoever computes what."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(700)]

KINDS = {
    "cnn": {"model": "cnn"},
    "gpt": {"model": "gpt"},
    "cnn, bfloat16": {"model": "cnn", "autocast": True},
    "gpt, bfloat16": {"model": "gpt", "autocast": True},
    "gpt, 32-bit sums": {"model": "gpt", "sum_bits": 32},
    "cnn, scaler that overflows": {"model": "cnn", "scaler": True},
    "cnn, in parts": {"model": "cnn", "shard_optimizer": True},
    "cnn, in parts, scaler that overflows": {
        "model": "cnn",
        "scaler": True,
        "shard_optimizer": True,
    },
    "cnn, loader processes": {"model": "cnn", "loaders": 1},
    "gpt, padded and masked by loader processes": {"model": "gpt", "ragged": True, "loaders": 1},
    "cnn, out of memory": {"model": "cnn", "oom": True},
}
PLANS = ("even", "skewed", "balancer")
CASES = [
    (name, plans) for name in KINDS for plans in (PLANS if name in ("cnn", "gpt") else ("skewed",))
]
CONTROLS = [(name, plans) for name in ("cnn", "gpt") for plans in ("even", "skewed")]


@pytest.fixture(scope="module")
def results(pytestconfig, tmp_path_factory, start_workers):
    """(kind, plans, in the mode) to the results of every rank of every number of workers.

    Two and four workers only with --all.
    """
    cases = [KINDS[name] | {"plans": plans} for name, plans in CASES]
    cases += [KINDS[name] | {"plans": plans, "mode": False} for name, plans in CONTROLS]
    keys = [(*case, True) for case in CASES] + [(*case, False) for case in CONTROLS]
    found = {key: {} for key in keys}
    for num_workers in (1, 2, 3, 4) if pytestconfig.getoption("--all") else (1, 3):
        folder = tmp_path_factory.mktemp(f"workers-{num_workers}")
        ranks = start_workers(folder, "reproducible", num_workers, cases=cases, timeout_seconds=300)
        for key, of_ranks in zip(keys, zip(*ranks, strict=True), strict=True):
            found[key][num_workers] = of_ranks
    return found


def fingerprints(results, kind, mode, of="fingerprint"):
    """All that were found for a kind of training, over numbers of workers and plans."""
    return {
        result[of]
        for (name, _, in_mode), numbers in results.items()
        if (name, in_mode) == (kind, mode)
        for ranks in numbers.values()
        for result in ranks
    }


@pytest.mark.parametrize("kind", KINDS)
def test_one_fingerprint(results, kind):
    """Parameters, optimizer and loss are the same bits for any number of workers and all plans."""
    assert len(fingerprints(results, kind, mode=True)) == 1


@pytest.mark.parametrize("kind", ["cnn", "cnn, scaler that overflows"])
def test_a_state_in_parts_changes_no_bit(results, kind):
    """The parameters are those of a run in which each worker has the whole state."""
    parts = kind.replace("cnn", "cnn, in parts")
    both = [fingerprints(results, each, mode=True, of="weights") for each in (kind, parts)]
    assert both[0] == both[1]
    assert len(both[0]) == 1


def test_a_lack_of_memory_changes_no_bit(results):
    """Workers that had to compute their grains of a step again end with the same bits."""
    same = [fingerprints(results, kind, mode=True) for kind in ("cnn", "cnn, out of memory")]
    assert same[0] == same[1]
    calls = {
        kind: sum(result["calls"] for result in results[kind, "skewed", True][1])
        for kind in ("cnn", "cnn, out of memory")
    }
    assert calls["cnn, out of memory"] == calls["cnn"] + 2


def test_the_plans_did_differ(results):
    """The workers' shares were not always the same, so the fingerprints had reason to differ."""
    for (_, plans, _), numbers in results.items():
        if plans == "skewed":
            for ranks in [ranks for number, ranks in numbers.items() if number > 1]:
                assert len({size for rank in ranks for _, size in rank["shares"]}) > 2


@pytest.mark.parametrize("kind", ["cnn", "gpt"])
def test_the_control_differs(results, kind):
    """Without the mode the same trainings end in different bits."""
    assert len(fingerprints(results, kind, mode=False)) >= 3


def test_evaluation_does_not_depend_on_the_shares(results):
    """Its result is the same float everywhere."""
    for kind in (kind for kind in KINDS if KINDS[kind]["model"] == "gpt"):
        found = {
            result["evaluation"]["loss"]
            for plans in PLANS
            for ranks in results.get((kind, plans, True), {}).values()
            for result in ranks
        }
        assert len(found) == 1


def test_the_scaler_skips_the_same_steps(results):
    """A scale that overflows in the first steps is lowered by all alike, and training recovers."""
    for ranks in results["cnn, scaler that overflows", "skewed", True].values():
        for result in ranks:
            assert result["finite"]
            assert result["scale"] < 2.0**127
