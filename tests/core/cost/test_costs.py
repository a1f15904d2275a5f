"""A scripted day: who has to be paid for when, to the cent and the joule."""

from __future__ import annotations

import math

import pytest

from hetero_hvd.core.cost.bill import bill_of
from hetero_hvd.core.cost.energy import EnergyMeters, EnergySample
from hetero_hvd.core.cost.meters import interval_samples
from hetero_hvd.core.cost.presence import Stay, stays_of
from hetero_hvd.core.cost.training import Point, Target, trained_of
from hetero_hvd.errors import UserError
from hetero_hvd.messages import (
    EpochBegan,
    Evaluated,
    Finished,
    NodesPriced,
    RunEnded,
    RunStarted,
    WorkerExited,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)

HOUR = 3600.0
NINE = 1_700_000_000.0
STARTED = RunStarted(run_id="day", command=(), nodes=(), settings={})
ENDED = RunEnded(exit_code=0, reason="done")
EVALUATED = Evaluated(epoch=0, step=1, metrics={})
PRICED = NodesPriced(per_hour={"alpha": 2.0, "beta": 0.5}, unpriced=("gamma",))


def came(worker, *, restarts=0):
    """A worker's process starts."""
    name = WorkerId.parse(worker)
    host = f"{name.node}-{name.slot}.r{restarts}"
    return WorkerStarted(worker=name, host=host, num_restarts=restarts)


def went(worker, *, restarts=0):
    """It ends."""
    started = came(worker, restarts=restarts)
    return WorkerExited(worker=started.worker, host=started.host, exit_code=1, words="")


def joined(*nodes, steps=0, size=100):
    """A membership of one worker on each node."""
    return WorkersJoined(
        rendezvous_id=1,
        workers=tuple(WorkerId(node, 0) for node in nodes),
        applied_steps=steps,
        global_batch_size=size,
        capacities=(-1,) * len(nodes),
        prefetch_steps=0,
    )


ALPHA, BETA = "alpha:0", "beta:0"
BEGIN = [(0, STARTED), (0, PRICED), (0, came(ALPHA))]
END = [(8, went(ALPHA)), (8, ENDED)]
AGAIN = came(ALPHA, restarts=1)

DAYS = {
    "one node, all day": ([*BEGIN, *END], {"alpha": 16.0}),
    "two workers on a node pay once": (
        [*BEGIN, (1, came("alpha:1")), (5, went(ALPHA)), (8, went("alpha:1"))],
        {"alpha": 16.0},
    ),
    "a late node pays from its start": (
        [*BEGIN, (6, came(BETA)), (8, went(BETA)), *END],
        {"alpha": 16.0, "beta": 1.0},
    ),
    "a departed node pays to its exit": (
        [*BEGIN, (0, came(BETA)), (2, went(BETA)), *END],
        {"alpha": 16.0, "beta": 1.0},
    ),
    "one that comes back was gone meanwhile": (
        [*BEGIN, (0, came(BETA)), (2, went(BETA)), (6, came(BETA)), (8, went(BETA)), *END],
        {"alpha": 16.0, "beta": 2.0},
    ),
    "one whose worker is started again was kept": (
        [*BEGIN, (2, went(ALPHA)), (3, AGAIN), (8, ENDED)],
        {"alpha": 16.0},
    ),
    "a restart beside another worker": (
        [
            *BEGIN,
            (0, came("alpha:1")),
            (2, went(ALPHA)),
            (3, AGAIN),
            (4, went("alpha:1")),
            (8, ENDED),
        ],
        {"alpha": 16.0},
    ),
    "a node without a price is named": (
        [*BEGIN, (0, came("gamma:0")), (4, went("gamma:0")), *END],
        {"alpha": 16.0, "gamma": None},
    ),
    "so is one that no price was told of": (
        [*BEGIN, (0, came("delta:0")), (4, went("delta:0")), *END],
        {"alpha": 16.0, "delta": None},
    ),
    "a price that changes": (
        [*BEGIN, (4, NodesPriced(per_hour={"alpha": 1.0})), *END],
        {"alpha": 12.0},
    ),
    "a node that leaves the file keeps its price while it drains": (
        [*BEGIN, (4, NodesPriced(per_hour={"beta": 0.5})), *END],
        {"alpha": 16.0},
    ),
    "a run that goes on pays to what was last heard": ([*BEGIN, (5, EVALUATED)], {"alpha": 10.0}),
    "a driver that was killed, and a resume in its folder": (
        [*BEGIN, (1, EVALUATED), (4, STARTED), (4, PRICED), (4, came(ALPHA)), (6, ENDED)],
        {"alpha": 6.0},
    ),
    "an end without exits": ([*BEGIN, (3, ENDED)], {"alpha": 6.0}),
    "a clock that is set back": ([*BEGIN, (4, EVALUATED), (2, went(ALPHA))], {"alpha": 8.0}),
    "without a driver members are there": (
        [(0, PRICED), (1, joined("alpha", "beta")), (3, joined("alpha")), (7, ENDED)],
        {"alpha": 12.0, "beta": 1.0},
    ),
    "an exit of one that never came": ([*BEGIN, (1, went(BETA)), (2, ENDED)], {"alpha": 4.0}),
    "nobody came": ([(0, STARTED), (1, ENDED)], {}),
    "nothing was recorded": ([], {}),
}


def day_of(hours):
    """The events of a day with their times, seconds since 1970."""
    return [(NINE + hour * HOUR, event) for hour, event in hours]


@pytest.mark.parametrize("day", DAYS)
def test_a_day_costs_what_it_costs(day):
    """To the last digit; who has no price is named."""
    hours, expected = DAYS[day]
    bill = bill_of(stays_of(day_of(hours)))
    found = {node.node: node.cost if node.prices_per_hour else None for node in bill.nodes}
    assert found == expected
    priced = [cost for cost in expected.values() if cost is not None]
    assert bill.cost == (sum(priced) if priced else None)
    assert bill.unpriced == tuple(name for name, cost in expected.items() if cost is None)


def test_some_hours_may_have_had_no_price():
    """They are counted as such beside the others; a price given later holds for all."""
    day = day_of([(0, STARTED), (0, came(ALPHA)), (1, PRICED), (3, ENDED)])
    (node,) = bill_of(stays_of(day)).nodes
    assert (node.cost, node.unpriced_hours, node.prices_per_hour) == (4.0, 1.0, (2.0,))
    assert bill_of(stays_of(day)).unpriced == ("alpha",)
    given = bill_of(stays_of(day, prices={"alpha": 3.0}))
    assert (given.cost, given.unpriced) == (9.0, ())


def test_a_part_of_the_day_costs_its_part():
    """Whatever it cuts."""
    stays = stays_of(day_of(DAYS["a late node pays from its start"][0]))
    assert bill_of(stays, NINE + 5 * HOUR, NINE + 7 * HOUR).cost == 4.0 + 0.5
    assert bill_of(stays, NINE + 9 * HOUR).cost is None


def stay(begin, end, node="alpha"):
    """A node in the job."""
    return Stay(node=node, from_seconds=begin, until_seconds=end, price_per_hour=None)


def counted(*pairs, node="alpha", meter="gpu 0"):
    """A counter that shows (at seconds, joules)."""
    return [EnergySample(node, meter, at, joules) for at, joules in pairs]


def drawn(*pairs, span=0.0):
    """A meter that tells (at seconds, watts) alone."""
    return [EnergySample("alpha", "cpu", at, power_watts=p, span_seconds=span) for at, p in pairs]


METERS = {
    "a counter is exact however far apart": (counted((0, 5), (100, 305)), 300, 100),
    "a counter that is read often": (counted((0, 0), (30, 10), (60, 90), (100, 100)), 100, 100),
    "power is integrated": (drawn(*((s, 2.0 * s) for s in range(0, 101, 10))), 10000, 100),
    "power told too seldom": (drawn((0, 10), (10, 10), (90, 10), (100, 10)), 200, 20),
    "power that stands for some time": (drawn((0, 9), (50, 10), (100, 20), span=50.0), 1500, 100),
    "a counter that begins anew": (counted((0, 100), (40, 500), (60, 20), (100, 60)), 440, 80),
    "of two meters the worse one says what is covered": (
        [*counted((0, 0), (100, 100)), *counted((50, 0), (100, 50), meter="cpu")],
        150,
        50,
    ),
    "a clock that is set back": (counted((0, 0), (60, 60), (30, 80), (100, 120)), 120, 100),
    "two readings at a time": (counted((0, 0), (0, 0), (100, 70)), 70, 100),
    "one reading is none": (counted((50, 1000)), 0, 0),
    "of another node": (counted((0, 0), (100, 9), node="beta"), 0, 0),
}


@pytest.mark.parametrize("case", METERS)
def test_energy_of_a_node(case):
    """Exact where it was measured; what was not is a gap, and not made up for."""
    samples, joules, measured = METERS[case]
    (used,) = EnergyMeters(samples).used([stay(0.0, 100.0)])
    assert used.joules == pytest.approx(joules, rel=1e-12)
    assert used.measured_seconds == pytest.approx(measured)
    assert used.gap_seconds == pytest.approx(100.0 - measured)


def test_only_the_time_in_the_job_counts():
    """A counter runs on while its node is somebody else's."""
    meters = EnergyMeters(counted((0, 0), (100, 1000), (200, 1000)))
    (used,) = meters.used([stay(10.0, 20.0), stay(50.0, 60.0)])
    assert used.joules == pytest.approx(200.0)
    (part,) = meters.used([stay(10.0, 20.0)], 15.0, 60.0)
    assert part.joules == pytest.approx(50.0)


def interval(begin, *, joules=None, watts=None, node="alpha", device=-1, seconds=10.0, machine="m"):
    """A row of a meter."""
    return {
        "at_unix_seconds": begin,
        "node": node,
        "device": device,
        "uuid": "GPU-1" if device >= 0 else "",
        "machine_id": machine,
        "seconds": seconds,
        "energy_joules": joules,
        "power_watts_mean": watts,
    }


def test_a_machine_that_is_two_nodes_is_measured_once():
    """Its meters belong to the node that told first; what tells nothing is no meter."""
    rows = [
        interval(0.0, joules=0.0, watts=9.0),
        interval(0.0, joules=0.0, watts=9.0, node="beta"),
        interval(0.0, node="gamma", machine="n"),
        interval(10.0, joules=90.0, watts=9.0, node="beta"),
        interval(10.0, joules=90.0, watts=9.0),
    ]
    assert {(sample.node, sample.meter) for sample in interval_samples(rows)} == {("alpha", "cpu")}


INTERVALS = {
    "a counter, and the power of its beginning": (
        [interval(10.0 * i, joules=100.0 * (i + 1), watts=10.0) for i in range(10)],
        1000.0,
        100.0,
    ),
    "a counter alone begins with its first interval": (
        [interval(10.0 * i, joules=100.0 * (i + 1)) for i in range(10)],
        900.0,
        90.0,
    ),
    "power alone": ([interval(10.0 * i, watts=10.0) for i in range(10)], 1000.0, 100.0),
    "long intervals of power": (
        [interval(50.0 * i, watts=10.0 * (1 + i), seconds=50.0) for i in range(2)],
        1500.0,
        100.0,
    ),
    "a pause is a gap for power": (
        [interval(0.0, watts=10.0), interval(90.0, watts=10.0)],
        200.0,
        20.0,
    ),
    "a machine that is two nodes": (
        [interval(10.0 * (i // 2), watts=10.0, node=("alpha", "beta")[i % 2]) for i in range(20)],
        1000.0,
        100.0,
    ),
    "nothing was told": ([interval(10.0 * i) for i in range(10)], 0.0, 0.0),
}


@pytest.mark.parametrize("case", INTERVALS)
def test_energy_of_intervals(case):
    """As of samples; whatever their length."""
    rows, joules, measured = INTERVALS[case]
    meters = EnergyMeters(interval_samples(rows))
    used = meters.used([stay(0.0, 100.0), stay(0.0, 100.0, "beta")])
    assert sum(node.joules for node in used) == pytest.approx(joules)
    assert used[0].measured_seconds == pytest.approx(measured)


def finished(steps):
    """A loop over epochs is through."""
    return Finished(worker=WorkerId("alpha", 0), applied_steps=steps, checksum="")


def epoch(step, number=0):
    """One begins."""
    return EpochBegan(epoch=number, step=step)


TRAININGS = {
    "one membership": ([joined("alpha"), finished(50)], 50, 5000),
    "still under way": ([joined("alpha"), epoch(9)], 10, 1000),
    "lost steps are done again": (
        [joined("alpha"), epoch(40), joined("alpha", steps=30), finished(50)],
        50,
        5000,
    ),
    "gone back before its own beginning": (
        [joined("alpha", steps=100), joined("alpha", steps=80), finished(120)],
        20,
        2000,
    ),
    "another batch size": (
        [joined("alpha"), joined("alpha", steps=30, size=10), finished(50)],
        50,
        3200,
    ),
    "the rest of an earlier run": ([joined("alpha", steps=40), finished(50)], 10, 1000),
    "both workers finish": ([joined("alpha"), finished(50), finished(50)], 50, 5000),
    "two loops, one membership": (
        [joined("alpha"), finished(50), epoch(4), finished(20)],
        70,
        7000,
    ),
    "two loops, each with its membership": (
        [joined("alpha"), finished(50), joined("alpha"), finished(9)],
        59,
        5900,
    ),
    "none": ([], 0, 0),
}


@pytest.mark.parametrize("case", TRAININGS)
def test_what_was_done_counts_once(case):
    """Whatever was lost, resumed or begun again."""
    events, steps, samples = TRAININGS[case]
    found = trained_of([(float(at), event) for at, event in enumerate(events)], (), math.nan)
    assert (found.steps, found.samples) == (steps, samples)


def test_epochs_last_until_the_next_one():
    """Or to the end; that of a driver that was killed ends with what was last heard of it."""
    events = [
        (0.0, STARTED),
        (5.0, epoch(1)),
        (9.0, epoch(8, number=1)),
        (12.0, EVALUATED),
        (50.0, STARTED),
        (55.0, epoch(9, number=1)),
    ]
    found = trained_of(events, (), 60.0)
    assert [span[:3] for span in found.spans] == [(0, 5.0, 9.0), (1, 9.0, 12.0), (1, 55.0, 60.0)]
    assert found.epochs == (0, 1)


def test_epochs_that_are_shorter_than_an_exchange_share_its_time():
    """Each has its part; one that begins anew takes none of those between."""
    events = [(0.0, epoch(1)), (9.0, epoch(8, number=3)), (10.0, epoch(9, number=1))]
    found = trained_of(events, (), 12.0)
    assert [span[:3] for span in found.spans] == [
        (0, 0.0, 3.0),
        (1, 3.0, 6.0),
        (2, 6.0, 9.0),
        (3, 9.0, 10.0),
        (1, 10.0, 12.0),
    ]


METRICS = [
    (10.0, Evaluated(epoch=0, step=5, metrics={"accuracy": 0.8, "bad": math.nan})),
    (20.0, Evaluated(epoch=1, step=10, metrics={"accuracy": 0.9})),
    (30.0, Evaluated(epoch=2, step=15, metrics={"accuracy": 0.95})),
]
POINTS = [Point(10.0, 4, 2.0), Point(20.0, 9, math.nan), Point(30.0, 14, 0.5)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("accuracy >= 0.9", (20.0, 10)),
        ("accuracy>0.9", (30.0, 15)),
        ("accuracy < 0.85", (10.0, 5)),
        ("accuracy >= 0.99", None),
        ("loss <= 0.5", (30.0, 15)),
        ("loss < 0.5", None),
        ("bad > 0", None),
    ],
)
def test_a_target_is_reached_once(text, found):
    """The first time counts; what was not measured reaches nothing."""
    assert Target.parse(text).reached_at(METRICS, POINTS) == found


@pytest.mark.parametrize("text", ["", "accuracy", "accuracy = 1", "a > high", "> 1", "a > nan"])
def test_what_is_no_target_is_one_line(text):
    """It says what is."""
    with pytest.raises(UserError, match=r"accuracy >= 0\.9"):
        Target.parse(text)


def test_a_metric_that_is_not_there_is_named():
    """With those that are."""
    with pytest.raises(UserError, match=r"'acc'; there are accuracy, bad, loss"):
        Target.parse("acc > 1").reached_at(METRICS, POINTS)
