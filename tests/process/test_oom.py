"""Memory that runs out costs part of a step, and nothing else."""

import random

import pytest

pytestmark = pytest.mark.process

PLANS = [[200, 200, 200], [300, 200, 100], [100, 400, 100]]


@pytest.mark.parametrize("where", [pytest.param("forward", marks=pytest.mark.matrix), "backward"])
def test_a_step_that_runs_out_of_memory_is_finished_in_smaller_pieces(run_workers, where):
    """One of three workers meets its RLIMIT_AS, or a refusal after half of the reductions began.

    The same step completes with the same global batch, the model is that of one process, and no
    size as large as the one that failed is seen again.
    """
    chance = random.SystemRandom()
    victim, step = chance.randrange(3), chance.randrange(1, 6)
    results = run_workers("oom", 3, victim=victim, step=step, where=where, plans=PLANS)
    context = f"victim {victim}, step {step}"
    assert [result["fired"] for result in results] == [
        [step] if rank == victim else [] for rank in range(3)
    ], context
    assert max(result["error"] for result in results) < 1e-5, context
    assert len({result["together"] for result in results}) == 1, context
    for rank, result in enumerate(results):
        sizes = [size for at, size in result["calls"] if at == step]
        if rank != victim:
            assert len(sizes) == 1, context
            continue
        failed, *smaller = sizes
        assert smaller, context
        assert max(smaller) <= failed // 2, context
        later = [size for at, size in result["calls"] if at > step]
        assert all(size < failed for size in later), context


def test_the_cap_keeps_a_larger_share_from_running_out_of_memory(run_workers):
    """What earlier steps needed tells that 400 samples at once would not fit, before they are.

    RLIMIT_AS leaves room for 300. The share is 400 all the same, in smaller micro-batches; nothing
    fails on the way, or samples would be seen twice.
    """
    # On a busy machine a worker seems to change: plans follow each other faster then.
    plans = [*[[200, 200, 200]] * 3, *[[100, 400, 100]] * 6]
    results = run_workers("oom", 3, victim=1, step=1, where="never", plans=plans)
    assert [result["fired"] for result in results] == [[], [1], []]
    assert max(result["error"] for result in results) < 1e-5
    steps = [[size for at, size in results[1]["calls"] if at == step] for step in range(6)]
    assert [sum(sizes) for sizes in steps][-1] == 400
    assert all(sum(sizes) in (200, 400) for sizes in steps)
    assert all(max(sizes) <= 300 for sizes in steps)
