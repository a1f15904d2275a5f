"""What is old becomes coarser: sums stay, what happens seldom stays, the size has a bound."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import pairwise

import pytest

from hetero_hvd.core.step_table import StepTables
from hetero_hvd.messages import (
    ClockMeasured,
    CollectivesTimed,
    Decided,
    DeviceUsed,
    EpochBegan,
    Evaluated,
    Judged,
    OperationTiming,
    PhasesTimed,
    SourceRead,
    SourcesRead,
    StepsTimed,
    StepTiming,
    WorkerId,
    WorkersJoined,
    WorkerStarted,
)
from hetero_hvd.run.records.compaction import thinning as module
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.records.writer import FILE, Recorder
from hetero_hvd.run.reports.facts import facts_of

ALPHA, BETA = WorkerId("alpha", 0), WorkerId("beta", 0)
DAY = 86400.0
BEGIN = 20_000 * DAY
JOINED = WorkersJoined(
    rendezvous_id=1,
    workers=(ALPHA, BETA),
    applied_steps=0,
    global_batch_size=12,
    capacities=(-1, -1),
    prefetch_steps=0,
)


def timing(share, *, transfer=0.0):
    """Ten steps of a worker."""
    phases = {name: 0.01 for name in StepTiming.__struct_fields__ if name.endswith("_seconds")}
    phases |= {"transfer_seconds": transfer, "step_seconds": 0.2}
    return StepTiming(num_steps=10, local_batch_size=share, memory_bytes=share * 1e9, **phases)


def observe_all(folder, events):
    """Record events with their times, without ever losing one."""
    recorder = Recorder(folder)
    tables = StepTables()
    for number, (at_seconds, event) in enumerate(events):
        recorder.observe(at_seconds, event)
        if (table := tables.observe(event)) is not None:
            recorder.observe(at_seconds, table)
        if number % 2000 == 0:
            assert recorder.flush()
    recorder.close()
    assert recorder.num_lost == 0
    return read_record(folder)


def exchanges(seconds, *, every):
    """A run of two workers."""
    yield BEGIN, JOINED
    for number in range(int(seconds / every)):
        yield (
            BEGIN + number * every,
            StepsTimed(
                rendezvous_id=1,
                step=10 * number + 9,
                epoch=number // 100,
                loss=float(number),
                timings=(timing(8, transfer=math.nan if number == 5 else 0.001), timing(4)),
                exchange_seconds=0.0,
            ),
        )


def test_rollups_become_coarser_and_sum_up_to_the_same(tmp_path):
    """Ten seconds for an hour, a minute for a day, ten minutes after that."""
    days = 1.5
    num_exchanges = int(days * DAY / 30.0) - 1  # the first one is left out
    record = observe_all(tmp_path, exchanges(days * DAY, every=30.0))
    rows = [row for row in record.rollups if row["worker"] == "alpha:0"]
    steps = Counter()
    for row, following in pairwise(rows):
        steps[following["at_unix_seconds"] - row["at_unix_seconds"]] += 1
    assert steps[600.0] == pytest.approx(0.5 * DAY / 600, abs=2)
    assert steps[60.0] == pytest.approx(23 * 60, abs=12)
    assert steps[30.0] == pytest.approx(120, abs=4)
    assert sum(row["num_steps"] for row in rows) == 10 * num_exchanges
    assert sum(row["samples"] for row in rows) == 80 * num_exchanges
    assert sum(row["forward_seconds"] for row in rows) == pytest.approx(0.1 * num_exchanges)
    assert [row["transfer_seconds"] for row in rows].count(None) == 1
    assert rows[0]["last_step"] == 10 * 19 + 9
    assert rows[0]["loss"] == pytest.approx(sum(range(1, 20)) / 19)
    assert rows[0]["memory_bytes"] == 8e9
    assert rows[-1]["epoch"] == num_exchanges // 100
    assert facts_of(record).samples_per_second == pytest.approx(12 / 0.2)


def operation(count):
    """Some reductions of a megabyte."""
    return OperationTiming(
        op="allreduce",
        backend="gloo",
        size_bucket_bytes=2**20,
        count=count,
        num_bytes=count * 2**20,
        total_seconds=0.1 * count,
        min_seconds=0.1 / (1 + count),
        max_seconds=0.1 * count,
    )


def recurring(number):
    """What a running job tells of again and again."""
    at_seconds = BEGIN + 2.0 * number
    kind = ("keep", "wait")[number % 2]
    told = (
        CollectivesTimed(
            rendezvous_id=1, step=number, num_workers=2, operations=(operation(1 + number % 3),)
        ),
        PhasesTimed(worker=ALPHA, step=number, seconds={"crop": 0.5}, counts={"crop": 3}),
        PhasesTimed(worker=BETA, step=number, seconds={"rare": 1.0}, counts={"rare": 1}),
        SourcesRead(worker=ALPHA, step=number, sources={"/data": SourceRead(wait_seconds=0.25)}),
        DeviceUsed(worker=ALPHA, step=number, utilization_ratio=number / 1e5),
        ClockMeasured(worker=BETA, offset_seconds=0.0, uncertainty_seconds=0.1),
        Judged(step=number, findings=()),
        Decided(rendezvous_id=1, step=number, action=kind, reason="because"),
    )
    return [(at_seconds, event) for event in told]


def test_recurring_events_become_fewer_and_sum_up_to_the_same(tmp_path):
    """Those of workers, nodes and actions by themselves; sums stay what they were."""
    number = 4000
    started = [(BEGIN, WorkerStarted(worker=ALPHA, host="alpha-0", num_restarts=0))]
    events = [event for i in range(number) for event in recurring(i)]
    record = observe_all(tmp_path, [*started, *events])
    kinds = Counter(type(event).__name__ for _, event in record.events)
    # Eight thousand seconds: a minute every two, an hour every ten, the rest every sixty.
    assert kinds["CollectivesTimed"] == pytest.approx(30 + 354 + 73, abs=12)
    assert kinds["PhasesTimed"] == 2 * kinds["CollectivesTimed"]
    assert kinds["Decided"] == pytest.approx(2 * kinds["CollectivesTimed"], abs=40)
    found = [event for _, event in record.events]
    collectives = [op for e in found if isinstance(e, CollectivesTimed) for op in e.operations]
    assert sum(op.count for op in collectives) == sum(1 + i % 3 for i in range(number))
    assert min(op.min_seconds for op in collectives) == 0.1 / 4
    crops = [e for e in found if isinstance(e, PhasesTimed) and e.worker == ALPHA]
    assert sum(e.counts["crop"] for e in crops) == 3 * number
    uses = [e.utilization_ratio for e in found if isinstance(e, DeviceUsed)]
    assert len(uses) == len(crops)
    assert uses[0] == pytest.approx(sum(range(30)) / 30 / 1e5), "the mean of a minute"
    waits = [e.sources["/data"].wait_seconds for e in found if isinstance(e, SourcesRead)]
    assert len(waits) == len(crops)
    assert sum(waits) == 0.25 * number


def test_what_happens_seldom_stays(tmp_path):
    """However old it is."""
    rare = [(BEGIN + DAY * day, EpochBegan(epoch=day, step=day)) for day in range(100)]
    record = observe_all(tmp_path, rare)
    assert [event.epoch for _, event in record.events] == list(range(100))


def test_what_a_script_makes_come_all_the_time_has_a_bound(tmp_path, monkeypatch):
    """The older ones become fewer, the newest stay; but what a cost is counted from is kept."""
    monkeypatch.setattr(module, "MAX_EVENTS_OF_A_KIND", 100)
    started = [
        (BEGIN + step, WorkerStarted(worker=ALPHA, host="alpha-0", num_restarts=step))
        for step in range(300)
    ]
    many = [
        (BEGIN + step, Evaluated(epoch=step, step=step, metrics={"accuracy": 0.5}))
        for step in range(3000)
    ]
    recorder = Recorder(tmp_path)
    for at_seconds, event in [*started, *many]:
        recorder.observe(at_seconds, event)
        assert recorder.flush()
    recorder.close()
    found = [event for _, event in read_record(tmp_path).events]
    steps = [event.step for event in found if isinstance(event, Evaluated)]
    assert 50 < len(steps) <= 100
    assert steps == sorted(steps)
    assert steps[-40:] == list(range(2960, 3000))
    assert steps[0] == 0
    older = [step for step in steps if step < 2800]
    assert max(later - step for step, later in pairwise(older)) < 300  # evenly over the time
    assert len(found) - len(steps) == 300


def test_a_run_that_is_gone_on_with_is_thinned_from_its_beginning(tmp_path):
    """What another driver has left as it was."""
    observe_all(tmp_path, [event for i in range(20) for event in recurring(i)])
    later = observe_all(tmp_path, [(BEGIN + 10 * DAY, EpochBegan(epoch=0, step=0))])
    kinds = Counter(type(event).__name__ for _, event in later.events)
    assert kinds["CollectivesTimed"] == 1
    assert kinds["PhasesTimed"] == 2
    collectives = next(e for _, e in later.events if isinstance(e, CollectivesTimed))
    assert collectives.operations[0].count == sum(1 + i % 3 for i in range(20))


def test_a_clock_that_was_set_back_overwrites_no_interval(tmp_path):
    """Its steps are added to the newest one."""
    record = observe_all(
        tmp_path,
        [
            (BEGIN - back, event)
            for back, (_, event) in zip(
                [0, 0, 0, *[3600] * 8], exchanges(300, every=30.0), strict=True
            )
        ],
    )
    rows = [row for row in record.rollups if row["worker"] == "alpha:0"]
    assert sum(row["num_steps"] for row in rows) == 90


class Full(sqlite3.Connection):
    """A catalogue on a disk that is full when it is to be thinned."""

    is_full = False

    def execute(self, order, *values):
        """As SQLite does."""
        if order == "COMMIT" and self.is_full:
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(order, *values)


@pytest.mark.parametrize("order", ["COMMIT", "ROLLBACK"])
def test_what_cannot_be_thinned_now_stays_and_hinders_nothing(tmp_path, order):
    """Whatever fails of it: the next transaction begins."""
    observe_all(tmp_path, [event for i in range(20) for event in recurring(i)])
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None, factory=Full)) as found:
        count = "SELECT count(*) FROM events"
        before = found.execute(count).fetchone()
        found.is_full = True
        thinning = module.Thinning(found)
        if order == "ROLLBACK":
            thinning._merge_logged = None  # raises
        with pytest.raises(sqlite3.Error if order == "COMMIT" else TypeError):
            thinning.thin(BEGIN + DAY)
        assert not found.in_transaction
        assert found.execute(count).fetchone() == before
        found.is_full = False
        module.Thinning(found).thin(BEGIN + DAY)
        assert found.execute(count).fetchone() < before


LOGGED = (
    "CREATE TABLE logged (id INTEGER PRIMARY KEY, at_unix_seconds, name, step, count, mean, "
    "minimum, maximum, last, told_step, epoch)"
)


def test_logged_values_become_fewer(tmp_path):
    """Means weigh their steps; what is no number counts for no mean; the newest stays."""
    connection = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    connection.execute("CREATE TABLE events (id, at_unix_seconds, kind, body)")
    connection.execute("CREATE TABLE rollups (at_unix_seconds, worker)")
    connection.execute(LOGGED)
    for i in range(10):
        mean = None if i == 3 else float(i)
        row = (i, BEGIN + i, "lr", 10 * i, 1 + i % 2, mean, mean, mean, mean, 10 * i, i // 8)
        connection.execute(f"INSERT INTO logged VALUES ({', '.join('?' * 11)})", row)  # noqa: S608
    module.Thinning(connection)._merge_logged(module.TIERS[0], BEGIN, BEGIN + 10.0)
    found = connection.execute("SELECT * FROM logged").fetchall()
    connection.close()
    mean = (0 + 2 * 1 + 2 + 4 + 2 * 5 + 6 + 2 * 7) / 10
    assert found == [
        (7, BEGIN + 7, "lr", 70, 12, mean, 0.0, 7.0, 7.0, 70, 0),
        (9, BEGIN + 9, "lr", 90, 3, (8 + 2 * 9) / 3, 8.0, 9.0, 9.0, 90, 1),
    ]


def test_thinning_leaves_no_room_unused(tmp_path):
    """What is deleted is written anew: after as much again the file has hardly grown."""
    sizes = []
    for part in range(2):
        events = [e for i in range(part * 4000, (part + 1) * 4000) for e in recurring(i)]
        observe_all(tmp_path, events)
        with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append((tmp_path / FILE).stat().st_size)
    assert sizes[1] < 1.5 * sizes[0]
