"""What nodes did, in a bounded number of rows."""

import math
import sqlite3
from contextlib import closing, suppress

import pytest

from hetero_hvd.core.cost.energy import EnergyMeters
from hetero_hvd.core.cost.meters import interval_samples
from hetero_hvd.core.cost.presence import Stay
from hetero_hvd.messages import DeviceSample, DeviceUser, NodeEquipped, NodeSampled
from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.records.samples import COLUMNS, MAX_WORDS, SCHEMA, THE_NODE, SampleTable
from hetero_hvd.run.records.writer import FILE, Recorder


def sample(number, node="a"):
    """Of a node with one GPU; energy grows, the rest goes up and down."""
    user = DeviceUser(pid=7, user="alice", command="train.py", job="r50 a:0")
    gpu = DeviceSample(
        index=0,
        uuid="u",
        power_watts=100.0 + number % 10,
        energy_joules=100.0 * number,
        throttled_seconds={"power": 1.0, "thermal": 2.0},
        throttle_reasons=("power_cap",) if number == 3 else (),
        used_by=(user,),
    )
    return NodeSampled(node=node, machine_id="m", cpu_use_ratio=number % 4 / 4, devices=(gpu,))


def test_an_interval_is_a_row_for_the_node_and_each_gpu(tmp_path):
    """With means, largest values, newest counters and all words; the rest is NULL."""
    recorder = Recorder(tmp_path)
    recorder.observe(1000.0, NodeEquipped(node="a", num_cpus=2))
    for number in range(12):
        recorder.observe(1000.0 + number, sample(number))
    recorder.close()
    record = read_record(tmp_path, sampled=COLUMNS)
    assert [event.num_cpus for _, event in record.events] == [2]
    rows = record.samples
    assert [(row["at_unix_seconds"], row["device"], row["num_samples"]) for row in rows] == [
        (1000.0, THE_NODE, 10),
        (1000.0, 0, 10),
        (1010.0, THE_NODE, 2),
        (1010.0, 0, 2),
    ]
    node, gpu = rows[:2]
    assert (node["use_ratio_mean"], node["use_ratio_max"]) == (pytest.approx(0.325), 0.75)
    assert (gpu["power_watts_mean"], gpu["power_watts_max"]) == (104.5, 109.0)
    assert (gpu["energy_joules"], gpu["throttled_seconds"], gpu["uuid"]) == (900.0, 3.0, "u")
    assert gpu["throttle_reasons"] == "power_cap"
    assert gpu["used_by"] == "pid 7 alice train.py job r50 a:0"
    assert (node["energy_joules"], gpu["use_ratio_mean"], node["load_max"]) == (None, None, None)


@pytest.mark.parametrize("offset", [0.0, 3.0, 9.9])
@pytest.mark.parametrize("num_seconds", [1, 7, 14, 29, 61])
@pytest.mark.parametrize("meter", ["counter and power", "counter", "power"])
def test_the_energy_of_a_run_is_that_of_its_meter_to_the_last_sample(
    tmp_path, offset, num_seconds, meter
):
    """However long the last interval was, and whenever it began."""
    recorder = Recorder(tmp_path)
    for number in range(num_seconds + 1):
        told = NodeSampled(
            node="a",
            package_power_watts=math.nan if meter == "counter" else 100.0,
            package_energy_joules=math.nan if meter == "power" else 100.0 * number,
        )
        recorder.observe(1000.0 + offset + number, told)
    recorder.close()
    begin = 1000.0 + offset
    stay = Stay(
        node="a", from_seconds=begin, until_seconds=begin + num_seconds, price_per_hour=None
    )
    meters = EnergyMeters(interval_samples(read_record(tmp_path).samples))
    (used,) = meters.used([stay])
    unknown = 10 if meter == "counter" else 0  # what a counter showed when it began is not told
    assert 100.0 * (num_seconds - unknown) <= used.joules <= 100.0 * num_seconds + 1e-6
    assert used.joules == pytest.approx(100.0 * used.measured_seconds)


@pytest.fixture
def connection():
    """A catalogue in memory, in a transaction."""
    found = sqlite3.connect(":memory:", isolation_level=None)
    found.execute(SCHEMA)
    found.execute("BEGIN")
    yield found
    found.close()


@pytest.mark.parametrize("nodes", [("a",), ("a", "b", "c")])
def test_a_week_in_few_rows(connection, nodes):
    """Hardly more than that; no sample is forgotten, no mean and no maximum changes."""
    table = SampleTable(connection, max_rows=100)
    most = 0
    for number in range(0, 7 * 86400, 300):
        for node in nodes:
            table.add(1e6 + number, sample(number // 300, node))
        (rows,) = connection.execute("SELECT COUNT(*) FROM samples").fetchone()
        most = max(most, rows)
    table.close()
    assert most <= 100 + 2 * len(nodes)
    found = connection.execute(
        "SELECT SUM(num_samples), SUM(power_watts_mean * num_samples) / SUM(num_samples), "
        "MAX(power_watts_max), MAX(energy_joules) FROM samples WHERE device = 0"
    ).fetchone()
    assert found == (2016 * len(nodes), pytest.approx(104.5, abs=0.01), 109.0, 201_500.0)


def test_who_used_a_gpu_is_not_forgotten(connection):
    """Nor why its clock was held down, however often the intervals are doubled; within limits."""
    table = SampleTable(connection, max_rows=20)
    for number in range(3000):
        user = DeviceUser(pid=number // 300, user="alice", command="x")
        reasons = (("power_cap", "thermal")[number % 2],)
        gpu = DeviceSample(uuid="u", throttle_reasons=reasons, used_by=(user,))
        table.add(1e6 + number, NodeSampled(node="a", machine_id="m", devices=(gpu,)))
    table.close()
    rows = "SELECT used_by, throttle_reasons FROM samples WHERE device = 0"
    users, reasons = zip(*connection.execute(rows).fetchall(), strict=True)
    assert len(users) < 20
    found = {user for told in users for user in told.split(", ")}
    assert found == {f"pid {pid} alice x" for pid in range(10)}
    assert set(reasons) <= {"power_cap, thermal", "power_cap"}  # one sample alone has one
    for number in range(3000):
        user = DeviceUser(pid=number, user="bob", command="x")
        gpu = DeviceSample(uuid="u", used_by=(user,))
        table.add(2e6 + number, NodeSampled(node="a", devices=(gpu,)))
    table.close()
    merged = [told.count("pid") for (told, _) in connection.execute(rows) if "bob" in told]
    assert max(merged[:-2]) <= MAX_WORDS


def test_a_disk_that_takes_no_merged_rows_leaves_the_intervals_as_they_are(connection):
    """As soon as it does, the rows become fewer; meanwhile none becomes coarser."""
    table = SampleTable(connection, max_rows=20)

    def refuse(action, *_):
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_CREATE_TEMP_TABLE else 0

    connection.set_authorizer(refuse)
    for number in range(400):
        with suppress(sqlite3.Error):
            table.add(1e6 + number, sample(number))
    assert connection.execute("SELECT MAX(num_samples) FROM samples").fetchone() == (10,)
    connection.set_authorizer(None)
    for number in range(400, 420):
        table.add(1e6 + number, sample(number))
    assert connection.execute("SELECT COUNT(*) FROM samples").fetchone()[0] <= 20


def test_a_run_that_goes_on_keeps_its_intervals(connection):
    """The second writer knows how far the first one has thinned."""
    first = SampleTable(connection, max_rows=20)
    for number in range(2000):
        first.add(number, sample(number))
    first.close()
    (before,) = connection.execute("SELECT MAX(seconds) FROM samples").fetchone()
    second = SampleTable(connection, max_rows=20)
    assert before > 20
    for number in range(500):
        second.add(2000 + number, sample(0))
    second.close()
    (after,) = connection.execute("SELECT MAX(seconds) FROM samples").fetchone()
    assert after in (before, 2 * before)


def test_a_writer_that_is_killed_loses_ten_seconds(connection):
    """However long the intervals of what was written before have become."""
    table = SampleTable(connection, max_rows=20)
    for number in range(5000):
        table.add(1e6 + number, sample(number))
        if number > 10:
            asked = "SELECT SUM(num_samples) FROM samples WHERE device = 0"
            (known,) = connection.execute(asked).fetchone()
            assert known >= number - 10, number
    (longest,) = connection.execute("SELECT MAX(num_samples) FROM samples").fetchone()
    assert longest > 200


def test_a_clock_that_is_set_back_loses_no_interval(connection):
    """An interval of the same name begins anew."""
    table = SampleTable(connection)
    for at in (1000.0, 1001.0, 500.0, 501.0, 1002.5):
        table.add(at, sample(1))
    table.close()
    found = connection.execute("SELECT SUM(num_samples) FROM samples WHERE device = 0").fetchone()
    assert found == (5,)


OTHER_TABLES = {
    "an earlier version": ("DROP TABLE samples", None),
    "a view": ("DROP TABLE samples; CREATE VIEW samples AS SELECT 1", "no plain table"),
    "text for a number": (
        "UPDATE samples SET use_ratio_mean = 'x'",
        "'use_ratio_mean' of a row of 'samples' is no such value",
    ),
    "a number for a text": ("UPDATE samples SET node = 7", "'node' of a row of 'samples'"),
}


@pytest.mark.parametrize(("change", "problem"), OTHER_TABLES.values(), ids=OTHER_TABLES)
def test_other_tables(tmp_path, change, problem):
    """Earlier versions are read; what is no such table is an error that says what is wrong."""
    recorder = Recorder(tmp_path)
    recorder.observe(1.0, sample(1))
    recorder.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as catalogue, catalogue:
        catalogue.executescript(change)
    catalogue.close()
    if problem is None:
        assert read_record(tmp_path, sampled=COLUMNS).samples == ()
        return
    with pytest.raises(Exception, match=problem):
        read_record(tmp_path, sampled=COLUMNS)
