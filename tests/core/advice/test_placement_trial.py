"""Trials of placements on clusters whose truth is a formula: what is measured, what is found."""

from __future__ import annotations

import math
import random
import re
from functools import partial
from itertools import combinations

import pytest

from hetero_hvd.core.advice.measured import measured_placements, trial_in_words
from hetero_hvd.core.advice.placement_trial import MAX_MEASURED, PlacementTrial, TrialSettings
from hetero_hvd.core.balance.step_time import StepTimeModel
from hetero_hvd.core.cost.placement import step_seconds
from hetero_hvd.core.step_table import StepTables
from hetero_hvd.messages import StepsTimed, StepTiming, WorkerId, WorkersJoined

BATCH = 120
NUM_EVEN = 3
"""Exchanges until a job has its first plan."""

LOAD = 1.5
"""So much longer a step takes beside somebody else's."""

BASE_SECONDS = 0.1
"""What the fastest one needs for the whole batch."""


class Cluster:
    """Nodes of one worker each, which leave and come back at once as the trial wants.

    Args:
        speeds: Of each, relative to the fastest.
        links: Of each, seconds that a reduction takes in which it takes part: the longest counts.
        noise: Of each exchange, a ratio.
        prices: Of each; none: there are none.
        watts: Of each, that is measured.
        loaded: Which visit other people's load slows down, from 0, as the trial goes; -1: none.
        shares_fixed: Whether there is no plan.
    """

    def __init__(
        self, speeds, links=(), *, seed=0, noise=0.01, drift=0.0, prices=(), watts=(), **more
    ):
        names = [f"n{index}" for index in range(len(speeds))]
        self.curves = {
            WorkerId(name, 0): StepTimeModel(
                overhead_seconds=0.0, seconds_per_sample=BASE_SECONDS / BATCH / speed
            )
            for name, speed in zip(names, speeds, strict=True)
        }
        self.links = dict(zip(self.curves, links or [0.0] * len(speeds), strict=True))
        self.watts = dict(zip(names, watts, strict=False))
        self.noise = noise
        self.drift = drift
        self.random = random.Random(seed)  # noqa: S311 - noise
        self.loaded = more.pop("loaded", -1)
        self.shares_fixed = more.pop("shares_fixed", False)
        self.trial = PlacementTrial(TrialSettings(**more))
        self.trial.priced(dict(zip(names, prices, strict=False)))
        self.tables = StepTables()
        self.there = set(self.curves)
        self.starting = set()
        self.num_memberships = self.num_tables = self.num_loaded = 0
        self.said = []
        self.truth = {}
        self.meet()

    def event(self, workers):
        """These train together."""
        return WorkersJoined(
            rendezvous_id=self.num_memberships,
            workers=tuple(sorted(workers)),
            applied_steps=self.num_tables,
            global_batch_size=BATCH,
            capacities=(-1,) * len(workers),
            prefetch_steps=0,
            shares_fixed=self.shares_fixed,
        )

    def wanted(self):
        """Who should be a member, and can."""
        wanted = self.trial.wanted
        running = self.there - self.starting
        return running if wanted is None else running & wanted

    def meet(self):
        """A new membership of those who should."""
        self.num_memberships += 1
        self.joined = self.event(self.wanted())
        self.tables.observe(self.joined)
        self.trial.joined(self.joined)

    def seconds(self, workers):
        """What a step of these takes in truth, and what of it is the reduction."""
        key = tuple(workers)
        if key not in self.truth:
            link = max(self.links[worker] for worker in workers) if len(workers) > 1 else 0.0
            self.truth[key] = step_seconds(self.event(workers), self.curves, workers) + link, link
        return self.truth[key]

    def speed(self, nodes):
        """Samples per second of these in truth."""
        return BATCH / self.seconds([WorkerId(node, 0) for node in nodes])[0]

    def best(self):
        """Of all sets."""
        names = [worker.node for worker in self.curves]
        sets = [c for size in range(1, len(names) + 1) for c in combinations(names, size)]
        return max(map(self.speed, sets))

    def shares(self, workers):
        """Even ones until there is a plan."""
        rates = {worker: 1 / self.curves[worker].seconds_per_sample for worker in workers}
        shares = [round(BATCH * rates[worker] / sum(rates.values())) for worker in workers]
        if self.num_tables < NUM_EVEN:
            shares = [BATCH // len(workers)] * len(workers)
        shares[0] += BATCH - sum(shares)
        return shares

    def exchange(self):
        """Ten steps."""
        workers = list(self.joined.workers)
        seconds, link = self.seconds(workers)
        slower = math.exp(self.random.gauss(0, self.noise)) * (1 + self.drift * self.num_tables)
        if sum("samples/s, round" in line for line in self.said) == self.loaded:
            slower *= LOAD
            self.num_loaded += 1
        shares = self.shares(workers)
        if self.num_tables < NUM_EVEN:
            pairs = zip(workers, shares, strict=True)
            seconds = max(self.curves[worker].step_seconds(share) for worker, share in pairs) + link
        rows = tuple(
            StepTiming(
                num_steps=10,
                local_batch_size=share,
                memory_bytes=0.0,
                data_wait_seconds=0.0,
                transfer_seconds=0.0,
                forward_seconds=0.0,
                backward_seconds=self.curves[worker].step_seconds(share) * slower,
                comm_wait_seconds=link,
                optimizer_seconds=0.0,
                step_seconds=seconds * slower,
            )
            for worker, share in zip(workers, shares, strict=True)
        )
        self.num_tables += 1
        event = StepsTimed(
            rendezvous_id=self.num_memberships,
            step=10 * self.num_tables,
            epoch=0,
            loss=1.0,
            timings=rows,
            exchange_seconds=0.0,
        )
        self.trial.timed(
            self.tables.observe(event),
            at_seconds=float(self.num_tables),
            there=self.there,
            is_settled=set(workers) == self.there,
            watts=self.watts,
        )
        self.said += self.trial.news()

    def train(self, num_exchanges=400):
        """Until the trial is over, or so long."""
        for _ in range(num_exchanges):
            self.exchange()
            if self.trial.is_over:
                break
            if set(self.joined.workers) != self.wanted():
                self.meet()
        return self

    def lose(self, name, *, comes_back, is_told_late=False):
        """A worker's process ends; the others may meet before that is told."""
        worker = WorkerId(name, 0)
        self.starting |= {worker}
        for tell in (partial(self.trial.lost, worker), self.meet)[:: -1 if is_told_late else 1]:
            tell()
        self.exchange()
        self.starting -= {worker}
        if not comes_back:
            self.there -= {worker}
        self.meet()

    @property
    def found(self):
        """Nodes to what was found of them."""
        return {each.nodes: each for each in self.trial.report().placements}

    def best_found(self):
        """The nodes that are told to be the best."""
        return next(nodes for nodes, each in self.found.items() if each.verdict == "best")

    def advice(self, **options):
        """What follows for all of them."""
        self.trial.close()
        names = [worker.node for worker in self.curves]
        return list(measured_placements(list(self.found.values()), names, source="t", **options))


SLOW_LINK = {"speeds": (1, 0.5, 0.1), "links": (0.0, 0.005, 0.03)}
NOTHING_TO_GAIN = {"speeds": (1, 0.9, 0.8), "links": (0.002, 0.002, 0.002)}


@pytest.mark.parametrize("seed", range(4))
def test_the_best_is_within_3_percent_of_the_best_of_all(seed):
    """Of the cluster of the emulated ones, and of one that is drawn."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    speeds = (1, *(generator.uniform(0.05, 1) for _ in range(3)))
    links = [generator.uniform(0, 0.04) for _ in speeds]
    for made in (SLOW_LINK, {"speeds": speeds, "links": links}):
        cluster = Cluster(**made, seed=seed).train()
        assert cluster.trial.report().is_complete, cluster.said
        assert cluster.speed(cluster.best_found()) >= 0.97 * cluster.best(), cluster.said


def test_one_loaded_round_does_not_decide():
    """Of three placements of two drawn nodes the best is named in 97 of 100 cases at least.

    Where it is told by how much another one is worse, that holds in 90 % at least. Steps vary by
    5 %, and all of one of the first visits takes half as long again.
    """
    num_right = num_told = num_held = 0
    for seed in range(100):
        generator = random.Random(seed)  # noqa: S311 - no secret
        speeds = (1, generator.uniform(0.2, 1))
        links = (0.0, generator.uniform(0, 0.08))
        loaded = generator.randrange(3)
        cluster = Cluster(speeds, links, seed=seed, noise=0.05, loaded=loaded).train()
        assert cluster.num_loaded or loaded >= sum("round" in line for line in cluster.said)
        best = cluster.best_found()
        num_right += cluster.speed(best) >= 0.97 * cluster.best()
        for nodes, each in cluster.found.items():
            if found := re.search(r"([\d.]+)% to ([\d.]+)% of the best", each.verdict):
                num_told += 1
                true = 100 * cluster.speed(nodes) / cluster.speed(best)
                num_held += float(found[1]) - 0.05 <= true <= float(found[2]) + 0.05
    assert num_right >= 97
    assert num_told >= 50
    assert num_held >= 0.9 * num_told


def test_only_what_may_be_the_best_is_measured():
    """The others are told with their prediction, which holds what they do in truth."""
    cluster = Cluster(**SLOW_LINK).train()
    rest = {nodes: each for nodes, each in cluster.found.items() if not each.rounds}
    assert len(cluster.found) == 7
    assert 3 <= len(rest) <= 5
    for nodes, each in rest.items():
        assert each.predicted_low <= cluster.speed(nodes) <= each.predicted_high
        assert each.verdict == "not measured: too slow as predicted"


def test_a_cluster_with_nothing_to_gain_gets_no_advice():
    """In 20 of 20 runs, though clocks drift meanwhile by a fifth."""
    for seed in range(20):
        cluster = Cluster(**NOTHING_TO_GAIN, seed=seed, drift=0.002).train()
        assert cluster.best_found() == ("n0", "n1", "n2")
        assert not cluster.advice()


def test_what_is_advised_brings_what_is_said():
    """An interval of 95 % holds the truth in 18 of 20 runs at least."""
    held = 0
    for seed in range(20):
        cluster = Cluster(**SLOW_LINK, seed=seed, noise=0.02).train()
        (advice,) = cluster.advice(command="drain {node}")
        assert advice.command in ("drain n2", "drain n1 && drain n2")
        left = [n for n in ("n0", "n1", "n2") if n not in advice.command]
        true = cluster.speed(left) / cluster.speed(("n0", "n1", "n2")) - 1
        held += advice.gains[0].low <= true <= advice.gains[0].high
    assert held >= 18


@pytest.mark.parametrize(
    ("more", "best"),
    [
        ({"goal": "money", "prices": (1, 1, 1)}, ("n0",)),
        ({"goal": "money", "prices": (1, 0.1, 0.01)}, ("n0", "n1", "n2")),
        ({"goal": "money", "prices": (1, 1, 0)}, ("n2",)),
        ({"goal": "energy", "watts": (300, 300, 300)}, ("n0",)),
    ],
)
def test_what_is_best_depends_on_the_goal(more, best):
    """A slow node that costs as much as the fast one is worth nothing; a cheap one is."""
    cluster = Cluster((1, 0.5, 0.1), **more).train()
    if best == ("n0", "n1", "n2"):  # n1 alone is as cheap per sample as all are
        found = cluster.found[cluster.best_found()].cost_per_sample
        assert found <= 1.03 * cluster.found[best].cost_per_sample
    else:
        assert cluster.best_found() == best
    table = "\n".join(trial_in_words(cluster.trial.report()))
    assert "best" in table


def lost(cluster):
    """n2 dies while it is measured, and comes back."""
    cluster.train(5)
    cluster.lose("n2", comes_back=True)
    cluster.train()


def lost_and_told_late(cluster):
    """The others meet while its memory is freed, before its process has ended."""
    cluster.train(5)
    cluster.lose("n2", comes_back=True, is_told_late=True)
    cluster.train()


def lost_for_good(cluster):
    """The others are still compared."""
    cluster.train(12)
    cluster.lose("n2", comes_back=False)
    cluster.train()


def never_together(cluster):
    """A node is to come back, and does not."""
    cluster.train(12)
    assert WorkerId("n2", 0) not in cluster.joined.workers
    cluster.starting = {WorkerId("n2", 0)}
    cluster.train()


def ended_before(cluster):
    """After all together were measured once."""
    cluster.train(8)
    cluster.trial.close()


ENDINGS = {
    "one node": (Cluster.train, {"speeds": (1,)}, "there is but one node: nothing to try"),
    "no plan": (Cluster.train, SLOW_LINK | {"shares_fixed": True}, "the script divides its data"),
    "no price": (
        Cluster.train,
        SLOW_LINK | {"goal": "money", "prices": (1,)},
        "no price_per_hour of n1, n2",
    ),
    "no power": (Cluster.train, SLOW_LINK | {"goal": "energy"}, "the power of n0, n1, n2"),
    "no step": (lambda cluster: cluster.trial.close(), SLOW_LINK, "needs a script that trains by"),
    "too few steps": (ended_before, SLOW_LINK, "the job has ended before the trial was over"),
    "a node dies and comes back": (lost, SLOW_LINK, "best of"),
    "its end is told late": (lost_and_told_late, SLOW_LINK, "best of"),
    "a node dies for good": (lost_for_good, SLOW_LINK, "best of"),
    "a node does not come": (
        never_together,
        SLOW_LINK | {"patience_seconds": 5},
        "",
    ),
    "min_np is all": (Cluster.train, SLOW_LINK | {"min_np": 3}, "best of 1"),
    "min_np is two": (Cluster.train, SLOW_LINK | {"min_np": 2}, "best of"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_however_a_trial_ends_it_says_how_and_all_come_back(name):
    """What was measured until then is told; nothing is told that was not measured whole."""
    act, made, words = ENDINGS[name]
    cluster = Cluster(**made)
    act(cluster)
    if words:
        assert cluster.trial.is_over
        assert cluster.trial.wanted is None
        assert words in cluster.trial.report().words, cluster.said
    else:
        assert any("void, not together after 5 s" in line for line in cluster.said), cluster.said
    measured = [each for each in cluster.found.values() if each.rounds]
    assert all(len(each.nodes) >= made.get("min_np", 1) for each in measured)
    assert all(each.num_steps >= 20 * len(each.rounds) for each in measured)
    assert len(measured) <= MAX_MEASURED
    if name in {"a node dies and comes back", "its end is told late"}:
        assert cluster.found["n0", "n1", "n2"].num_void == 1
        assert cluster.best_found()
    if name == "a node dies for good":
        assert "n2:0 is not there any more" in cluster.found["n0", "n1", "n2"].verdict
        left = sum("not there" in each.verdict for each in measured)
        assert left
        told = f"best of {len(measured) - left} that were measured, without {left} that had to be"
        assert told in cluster.trial.report().words
