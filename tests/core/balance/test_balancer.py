"""`balance` keeps its promises for every cluster, not only for the ones that we thought of."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hetero_hvd.core.balance.balancer import balance, slowest_seconds
from hetero_hvd.core.balance.planner import stretched
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.errors import InfeasiblePlanError
from hetero_hvd.messages import WorkerId
from tests.work import lines_run

models = st.builds(
    StepTimeModel,
    overhead_seconds=st.floats(0, 0.1),
    seconds_per_sample=st.one_of(st.floats(1e-4, 0.1), st.sampled_from([0.01, 0.02])),
    micro_batch_size=st.sampled_from([0, 0, 1, 3, 8]),
)


def cluster_of(models):
    """Workers in rank order with names in another order."""
    return {WorkerId(f"node{-i % 7}", i): model for i, model in enumerate(models)}


clusters = st.lists(models, min_size=1, max_size=4).map(cluster_of)


def greedy(cluster, caps, batch):
    """Each sample to the worker that would finish it soonest; the definition, one by one."""
    shares = dict.fromkeys(cluster, 0)
    heap = [
        (model.step_seconds(1), worker)
        for (worker, model), cap in zip(cluster.items(), caps, strict=True)
        if cap
    ]
    heapq.heapify(heap)
    limits = dict(zip(cluster, caps, strict=True))
    for _ in range(batch):
        _, worker = heapq.heappop(heap)
        shares[worker] += 1
        if shares[worker] != limits[worker]:
            heapq.heappush(heap, (cluster[worker].step_seconds(shares[worker] + 1), worker))
    return tuple(shares.values())


@given(clusters, st.integers(1, 10), st.data())
def test_no_other_division_is_faster(cluster, batch, data):
    """The plan is as fast as the best of all divisions within the caps, found by brute force."""
    caps = data.draw(st.lists(st.integers(0, 10), min_size=len(cluster), max_size=len(cluster)))
    assume(sum(caps) >= batch)
    curves = tuple(cluster.values())
    best = min(
        slowest_seconds(curves, shares)
        for shares in itertools.product(*(range(cap + 1) for cap in caps))
        if sum(shares) == batch
    )
    shares = balance(cluster, global_batch_size=batch, capacities=caps)
    assert sum(shares) == batch
    assert all(share <= cap for share, cap in zip(shares, caps, strict=True))
    assert slowest_seconds(curves, shares) == best


@given(st.lists(models, min_size=1, max_size=40).map(cluster_of), st.integers(1, 400), st.data())
def test_the_plan_is_that_of_handing_out_samples_one_by_one(cluster, batch, data):
    """Bisection finds the very same shares as the greedy definition, ties included."""
    caps = data.draw(st.lists(st.integers(-1, 30), min_size=len(cluster), max_size=len(cluster)))
    assume(-1 in caps or sum(caps) >= batch)
    shares = balance(cluster, global_batch_size=batch, capacities=caps)
    assert shares == greedy(cluster, caps, batch)


@given(st.lists(models, min_size=2, max_size=8).map(cluster_of), st.integers(1, 60), st.randoms())
def test_order_of_workers_does_not_matter(cluster, batch, random):
    """The same cluster, listed in another order, gets the same plan."""
    listed = list(cluster.items())
    random.shuffle(listed)
    plan = dict(zip(cluster, balance(cluster, global_batch_size=batch), strict=True))
    other = balance(dict(listed), global_batch_size=batch)
    assert plan == dict(zip(dict(listed), other, strict=True))


@given(clusters, st.integers(1, 60), st.integers(1, 9))
def test_grains_are_never_split(cluster, batch, grain):
    """All shares are whole grains, but for one short grain that ends the batch."""
    shares = balance(cluster, global_batch_size=batch, grain=grain)
    assert sum(shares) == batch
    *others, last = [share for share in shares if share]
    assert all(share % grain == 0 for share in others)
    assert last % grain == batch % grain


@given(st.lists(models, min_size=2, max_size=4).map(cluster_of), st.integers(8, 40))
def test_lower_bounds_hold_and_cost_no_more_than_they_must(cluster, batch):
    """Everyone works when asked to; the others are as fast as brute force can make them."""
    shares = balance(cluster, global_batch_size=batch, at_least=[1] * len(cluster))
    curves = tuple(cluster.values())
    assert min(shares) >= 1
    best = (
        min(
            slowest_seconds(curves, (*first, batch - sum(first)))
            for first in itertools.product(range(1, batch), repeat=len(cluster) - 1)
            if sum(first) < batch
        )
        if len(cluster) < 4
        else None
    )
    assert best is None or slowest_seconds(curves, shares) == best


def test_a_worker_that_costs_more_than_it_gives_gets_nothing():
    """Its overhead alone is longer than the others need for the whole batch."""
    fast = StepTimeModel(overhead_seconds=0.0, seconds_per_sample=0.001)
    slow = StepTimeModel(overhead_seconds=1.0, seconds_per_sample=0.001)
    cluster = cluster_of([fast, slow, fast])
    assert balance(cluster, global_batch_size=100) == (50, 0, 50)


@pytest.mark.parametrize(("num_nodes", "more"), [(1, ""), (8, ""), (11, " and 3 more")])
def test_says_what_is_missing_when_memory_is_too_small(num_nodes, more):
    """The error carries both numbers that the user needs, and names the limit and its nodes."""
    curve = StepTimeModel(overhead_seconds=0.0, seconds_per_sample=0.1)
    workers = [WorkerId(f"n{i}", slot) for i in range(num_nodes) for slot in (0, 1)]
    nodes = ", ".join(f"n{i}" for i in range(min(num_nodes, 8)))
    words = f"by max_local_batch_size of {nodes}{more} the workers hold at most {7 * len(workers)} "
    with pytest.raises(InfeasiblePlanError, match=words) as caught:
        balance(
            dict.fromkeys(workers, curve),
            global_batch_size=1000,
            capacities=[7] * len(workers),
        )
    found = caught.value
    assert (found.global_batch_size, found.capacity) == (1000, 7 * len(workers))


@pytest.mark.parametrize("batch", [1_000_000, 1_000_777])
@pytest.mark.parametrize("spread", [0.0, 9e-3])
def test_ten_thousand_workers_are_planned_in_few_lines_per_worker(batch, spread):
    """Mixed and all equal (where every grain ties); a loop over samples would take 100 a worker.

    How long that takes is in `scripts/bench simulation`.
    """
    random = np.random.default_rng(0)
    cluster = {
        WorkerId(f"node{i // 8}", i % 8): StepTimeModel(
            overhead_seconds=0.01, seconds_per_sample=1e-3 + spread * random.random()
        )
        for i in range(10_000)
    }
    plans = []
    work = lines_run(lambda: plans.append(balance(cluster, global_batch_size=batch)))
    assert sum(plans[0]) == batch
    assert work < 15 * len(cluster)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 500))
def test_stretched_capacities_hold_the_batch_in_the_fewest_passes(capacities, total):
    """All by the same factor, no larger than it must be; untouched where the batch fits."""
    found = stretched(capacities, total)
    factors = {after // before for after, before in zip(found, capacities, strict=True)}
    assert len(factors) == 1
    (factor,) = factors
    assert found == tuple(factor * capacity for capacity in capacities)
    assert sum(found) >= total
    assert factor == 1 or sum(found) - sum(capacities) < total


def test_a_worker_without_a_limit_takes_what_the_others_cannot():
    """Nothing is stretched then, nor where nobody may hold anything."""
    assert stretched((16, -1), 1000) == (16, -1)
    assert stretched((0, 0), 8) == (0, 0)
