"""Samplers on real Horovod processes: each step's samples are the same, whoever takes which."""

from __future__ import annotations

from collections import defaultdict

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, start_workers):
    """Number of workers to what each of them found; three have shares that change."""
    return {
        number: start_workers(tmp_path_factory.mktemp(f"samplers-{number}"), "samplers", number)
        for number in (1, 3)
    }


def steps_of(ranks, case):
    """Step to its samples in order, and the samples of each worker."""
    steps = defaultdict(list)
    for rank in ranks:
        for step, first, samples in rank[case]["taken"]:
            steps[step].append((first, samples))
    return {
        step: [x for _, samples in sorted(parts) for x in samples]
        for step, parts in sorted(steps.items())
    }


@pytest.mark.matrix
def test_each_step_uses_the_same_samples(ranks):
    """On one worker and on three, whose shares are unequal and change."""
    assert len(ranks[1][0]) == 12
    for case in ranks[1][0]:
        alone = steps_of(ranks[1], case)
        assert len(alone) >= 4
        assert steps_of(ranks[3], case) == alone
    sizes = {
        len(samples) for rank in ranks[3] for _, _, samples in rank["own, synchronous"]["taken"]
    }
    assert len(sizes) > 2


@pytest.mark.matrix
def test_one_fingerprint_in_the_reproducible_mode(ranks):
    """To the last bit, with each sampler."""
    for case in (case for case in ranks[1][0] if case.endswith("reproducible")):
        prints = {rank[case]["fingerprint"] for number in (1, 3) for rank in ranks[number]}
        assert len(prints) == 1, case
