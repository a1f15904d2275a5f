"""When idle members are set aside, and when they come back: a cluster whose steps are a formula."""

import itertools
import random

import pytest

from hetero_hvd.core.balance.spares import IdleWorkers
from hetero_hvd.core.membership.set_aside import NUM_EXCHANGES, SetAsidePolicy
from hetero_hvd.core.step_table import StepTables
from hetero_hvd.messages import StepsTimed, StepTiming, WorkerId, WorkersJoined

CARD, GPU, CPU1, CPU2, CPU3 = (WorkerId(n, 0) for n in ("card", "gpu", "cpu1", "cpu2", "cpu3"))
BATCH, BUSY_SECONDS = 128, 0.005
COSTS = {CPU1: 0.020, CPU2: 0.012, CPU3: 0.016}
"""So much later than the others an idle worker comes to each reduction, seconds."""


class Cluster:
    """Members, whom the policy lets go and takes back at once.

    Args:
        loaded: Members with samples.
        idle: Member without samples to how late it comes to reductions, seconds.
        link_seconds: That each reduction takes where there is more than one member.
        noise: Of each step, a ratio.
    """

    def __init__(self, loaded, idle, *, mode="auto", min_np=1, link_seconds=0.0, noise=0.0):
        self.loaded = list(loaded)
        self.idle = dict(idle)
        self.outside = {}
        self.link_seconds = link_seconds
        self.noise = noise
        self.may_try = True
        self.reports = []
        self.policy = SetAsidePolicy(mode, min_np)
        self.tables = StepTables()
        self.random = random.Random(1)  # noqa: S311 - noise
        self.rendezvous_ids = itertools.count(1)
        self.step = 0
        self.meet()

    def meet(self):
        """A new membership."""
        event = WorkersJoined(
            rendezvous_id=next(self.rendezvous_ids),
            workers=(*self.loaded, *self.idle),
            applied_steps=self.step,
            global_batch_size=BATCH,
            capacities=(),
            prefetch_steps=0,
        )
        self.joined = event
        self.tables.observe(event)
        self.note(self.policy.joined(event.workers))

    def note(self, report):
        """Do what was decided."""
        if report is None:
            return
        self.reports.append(report)
        if report.what == "tried":
            self.outside |= {worker: self.idle.pop(worker) for worker in report.workers}
            self.meet()
        elif report.what == "returned":
            self.idle |= {worker: self.outside.pop(worker) for worker in report.workers}
            self.meet()

    def lose(self, worker):
        """A worker's process ends; the others meet again."""
        self.note(self.policy.lost(worker))
        self.loaded = [other for other in self.loaded if other != worker]
        self.idle.pop(worker, None)
        self.meet()

    def train(self, num_exchanges=3 * NUM_EXCHANGES, *, measured=(), batch=BATCH):
        """So many exchanges; `measured` are idle ones that get a sample in these."""
        for _ in range(num_exchanges):
            self.step += 1
            factor = 1 + self.noise * self.random.uniform(-1, 1)
            late = max(self.idle.values(), default=0.0)
            link = self.link_seconds * (len(self.joined.workers) > 1)
            waits = [late + link] * len(self.loaded)
            waits += [late - own + link for own in self.idle.values()]
            shares = [batch // len(self.loaded)] * len(self.loaded)
            shares += [int(worker in measured) for worker in self.idle]
            shares[0] += batch - sum(shares)
            rows = [
                self.row(*pair, late + link, factor) for pair in zip(shares, waits, strict=True)
            ]
            event = StepsTimed(
                rendezvous_id=self.joined.rendezvous_id,
                step=self.step,
                epoch=0,
                loss=1.0,
                timings=tuple(rows),
                exchange_seconds=0.0,
            )
            self.note(self.policy.timed(self.tables.observe(event), may_try=self.may_try))
        return self

    def row(self, share, wait, longest, factor):
        """Of one worker."""
        return StepTiming(
            num_steps=1,
            local_batch_size=share,
            memory_bytes=0.0,
            data_wait_seconds=0.0,
            transfer_seconds=0.0,
            forward_seconds=BUSY_SECONDS * factor,
            backward_seconds=0.0,
            comm_wait_seconds=wait * factor,
            optimizer_seconds=0.0,
            step_seconds=(BUSY_SECONDS + longest) * factor,
        )

    @property
    def done(self):
        """What was decided, of whom."""
        return [(report.what, report.workers) for report in self.reports]


def tried_and_kept(*workers):
    """Two reports."""
    return [("tried", workers), ("set aside", workers)]


ONE, TWO = (CARD,), (CARD, GPU)
WHOM = {
    "one loaded: the cheapest idle one stays": (ONE, (CPU1, CPU2, CPU3), {}, (CPU1, CPU3)),
    "one loaded, one idle": (ONE, (CPU1,), {}, ()),
    "one loaded, always": (ONE, (CPU1, CPU2), {"mode": "always"}, (CPU1, CPU2)),
    "one loaded, never": (ONE, (CPU1, CPU2), {"mode": "never"}, ()),
    "two loaded": (TWO, (CPU1, CPU2), {}, (CPU1, CPU2)),
    "two loaded, always": (TWO, (CPU1,), {"mode": "always"}, (CPU1,)),
    "two loaded, never": (TWO, (CPU1,), {"mode": "never"}, ()),
    "so many are wanted": (TWO, (CPU1, CPU2, CPU3), {"min_np": 4}, (CPU1,)),
    "all are wanted": (TWO, (CPU1,), {"min_np": 3}, ()),
    "all are wanted, always": (ONE, (CPU1,), {"min_np": 2, "mode": "always"}, ()),
    "all have samples": (TWO, (), {}, ()),
}


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize(("loaded", "idle", "more", "expected"), WHOM.values(), ids=WHOM)
def test_whom_to_set_aside(loaded, idle, more, expected, noise):
    """Idle ones, the most costly first, as many as may go; decided once, noise or not."""
    cluster = Cluster(loaded, {worker: COSTS[worker] for worker in idle}, noise=noise, **more)
    cluster.train(20 * NUM_EXCHANGES)
    assert cluster.done == (tried_and_kept(*sorted(expected)) if expected else [])
    assert len(cluster.joined.workers) == len(loaded) + len(idle) - len(expected)


def test_it_is_told_in_one_line():
    """Who, and what a step takes now and before."""
    cluster = Cluster(ONE, {CPU1: 0.0216, CPU2: 0.012}, mode="always").train()
    tried, kept = cluster.reports
    assert tried.words == (
        "cpu1:0, cpu2:0 have no samples, and 81% of a step is waiting for reductions: 8 exchanges "
        "are measured without them"
    )
    assert kept.words == (
        "card:0 alone: a step takes 5.0 ms instead of 26.6; cpu1:0, cpu2:0 are set aside until a "
        "worker is lost"
    )
    assert (kept.with_seconds, kept.without_seconds) == pytest.approx((0.0266, 0.005))


IN_VAIN = {
    "the others wait for each other": {"link_seconds": 0.02},
    "less than a tenth is gained": {"idle": {CPU1: 0.002}, "link_seconds": 0.02},
}


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("case", IN_VAIN.values(), ids=IN_VAIN)
def test_what_was_in_vain_is_undone_and_not_tried_again(case, noise):
    """Where the others are not a tenth faster."""
    idle = {CPU1: 0.0, CPU2: 0.0}
    cluster = Cluster(TWO, **{"idle": idle} | case, noise=noise).train(40 * NUM_EXCHANGES)
    workers = tuple(case.get("idle", idle))
    assert cluster.done == [("tried", workers), ("returned", workers)]
    come = "cpu1:0 comes back" if len(workers) == 1 else "cpu1:0, cpu2:0 come back"
    assert cluster.reports[1].words.endswith(come)


def test_another_of_the_idle_ones_is_not_tried_instead():
    """One loaded: which of the idle ones is cheapest is noise, and decides nothing."""
    cluster = Cluster(ONE, {CPU1: 0.0, CPU2: 0.0}, link_seconds=0.02).train()
    assert [what for what, _ in cluster.done] == ["tried", "returned"]
    cluster.idle = {CPU1: 0.0, CPU2: 1e-4}
    cluster.train()
    cluster.idle = {CPU1: 1e-4, CPU2: 0.0}
    assert len(cluster.train().done) == 2


def test_reductions_that_take_little_are_let_be():
    """Below a quarter of a step nothing is tried, though a tenth could be gained."""
    assert Cluster(TWO, {CPU1: 0.3 * BUSY_SECONDS}).train(40).done == []


def evidence(**more):
    """Two loaded workers and an idle one, an exchange before the decision."""
    cluster = Cluster(TWO, {CPU1: COSTS[CPU1]}, **more).train(NUM_EXCHANGES)
    assert cluster.done == []
    return cluster


def test_so_many_exchanges_decide():
    """The first of the membership is left out."""
    cluster = evidence().train(1)
    assert cluster.done == [("tried", (CPU1,))]
    cluster.train(NUM_EXCHANGES)
    assert len(cluster.done) == 1
    cluster.train(1)
    assert cluster.done == tried_and_kept(CPU1)


def test_an_idle_worker_that_is_measured_again_is_not_idle():
    """Nor does it end what was tried in vain: that it has samples for a while does."""
    cluster = evidence()
    cluster.train(IdleWorkers.ROWS, measured={CPU1}).train(NUM_EXCHANGES - 1)
    assert cluster.done == []
    cluster = Cluster(TWO, {CPU1: 0.0}, link_seconds=0.02).train()
    cluster.train(IdleWorkers.ROWS, measured={CPU1}).train()
    assert len(cluster.done) == 2
    cluster.train(NUM_EXCHANGES, measured={CPU1}).train()
    assert len(cluster.done) == 4


def test_smaller_last_batches_do_not_count():
    """Neither for nor against."""
    cluster = evidence().train(5, batch=BATCH // 2)
    assert cluster.done == []
    assert cluster.train(1).done == [("tried", (CPU1,))]
    cluster.train(NUM_EXCHANGES).train(5, batch=BATCH // 2)
    assert cluster.train(1).done == tried_and_kept(CPU1)


def test_nobody_leaves_while_others_start():
    """What they bring is not known yet."""
    cluster = evidence()
    cluster.may_try = False
    assert cluster.train(40).done == []
    cluster.may_try = True
    assert cluster.train(1).done == [("tried", (CPU1,))]


@pytest.mark.parametrize("is_told", [True, False], ids=["its process ends", "it is no member"])
@pytest.mark.parametrize("num", [NUM_EXCHANGES + 1, 3 * NUM_EXCHANGES], ids=["trial", "aside"])
def test_when_a_member_is_lost_all_come_back(num, is_told):
    """At once; and when it is back, all is as before."""
    cluster = Cluster(TWO, {CPU1: COSTS[CPU1]}).train(num)
    cluster.reports.clear()
    if is_told:
        cluster.lose(GPU)
    else:
        cluster.loaded.remove(GPU)
        cluster.meet()
    assert cluster.done == [("returned", (CPU1,))]
    assert cluster.joined.workers == (CARD, CPU1)
    cluster.loaded.append(GPU)
    cluster.meet()
    assert cluster.train().done[1:] == tried_and_kept(CPU1)


def test_who_leaves_is_not_lost():
    """Its process ends, and so does that of one who was none of the members."""
    cluster = Cluster(TWO, {CPU1: COSTS[CPU1]}).train(NUM_EXCHANGES + 1)
    assert cluster.policy.lost(CPU1) is None
    assert cluster.policy.lost(CPU3) is None
    cluster.train()
    assert cluster.policy.lost(CPU1) is None
    assert cluster.done == tried_and_kept(CPU1)


def test_a_newcomer_ends_a_trial():
    """What is measured then is another thing; once is enough for the same members."""
    cluster = Cluster(TWO, {CPU1: COSTS[CPU1]}).train(NUM_EXCHANGES + 1)
    cluster.idle[CPU2] = COSTS[CPU2]
    cluster.meet()
    assert cluster.done == [("tried", (CPU1,)), ("returned", (CPU1,))]
    assert cluster.reports[1].words == "cpu2:0 is a member: cpu1:0 comes back"
    assert cluster.train().done[2:] == tried_and_kept(CPU1, CPU2)


def test_a_newcomer_changes_nothing_for_those_set_aside():
    """It is set aside itself if it gets no samples, and all come back together."""
    cluster = Cluster(TWO, {CPU1: COSTS[CPU1]}).train()
    cluster.idle[CPU2] = COSTS[CPU2]
    cluster.meet()
    assert cluster.train().done == tried_and_kept(CPU1) + tried_and_kept(CPU2)
    cluster.lose(GPU)
    assert cluster.done[-1] == ("returned", (CPU1, CPU2))


def test_a_worker_that_takes_the_free_place_does_not_swing():
    """With `max_np` another one is waiting: each is tried once, in vain, and that is all."""
    cluster = Cluster(TWO, {CPU1: COSTS[CPU1]})
    for _ in range(10):
        cluster.train(NUM_EXCHANGES + 1)
        if not cluster.policy.away:
            continue
        (leaving,) = cluster.policy.away
        waiting = CPU2 if leaving == CPU1 else CPU1
        report = cluster.policy.joined((*TWO, waiting))
        cluster.reports.append(report)
        cluster.outside.clear()
        cluster.idle = {waiting: COSTS[waiting]}
        cluster.meet()
    each = [("tried", (CPU1,)), ("returned", (CPU1,)), ("tried", (CPU2,)), ("returned", (CPU2,))]
    assert cluster.done == each


@pytest.mark.parametrize("setting", [("never", 1), ("auto", 3)], ids=["never", "min_np"])
def test_other_settings_take_them_back(setting):
    """As soon as they hold."""
    cluster = Cluster(TWO, {CPU1: COSTS[CPU1]}).train()
    cluster.note(cluster.policy.follow("always", 2))
    assert cluster.done == tried_and_kept(CPU1)
    cluster.note(cluster.policy.follow(*setting))
    assert cluster.train().done == [*tried_and_kept(CPU1), ("returned", (CPU1,))]


def test_another_setting_is_worth_another_try():
    """What was in vain may not be so with fewer."""
    cluster = Cluster(ONE, {CPU1: 0.01, CPU2: 0.01}).train()
    assert [what for what, _ in cluster.done] == ["tried", "returned"]
    cluster.note(cluster.policy.follow("always", 1))
    assert cluster.train().done[2:] == tried_and_kept(CPU1, CPU2)


def test_who_is_away_for_another_reason_is_forgotten():
    """The user has drained it: it does not come back with the others."""
    cluster = Cluster(TWO, {CPU1: COSTS[CPU1], CPU2: COSTS[CPU2]}).train()
    cluster.policy.forget(frozenset({CPU1}))
    cluster.lose(GPU)
    assert cluster.done[-1] == ("returned", (CPU2,))


@pytest.mark.parametrize("num_seconds", [0, 5, 50])
def test_nobody_leaves_for_a_moment_without_samples(num_seconds):
    """A machine that is busy for a while is worth waiting for, as its start takes longer."""
    cluster = Cluster([CARD, GPU], {CPU1: 0.9})
    num_exchanges = int(num_seconds / (BUSY_SECONDS + 0.9))
    cluster.policy.follow("auto", 1, min_idle_seconds=num_seconds)
    cluster.train(max(num_exchanges, NUM_EXCHANGES) - 1)
    assert not cluster.reports
    cluster.train(2, measured=[CPU1])  # it has had some, and all begins anew
    cluster.train(max(num_exchanges, NUM_EXCHANGES) - 1)
    assert not cluster.reports
    cluster.train(3)
    assert [report.what for report in cluster.reports] == ["tried"]
