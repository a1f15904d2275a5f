"""What is advised of machines by their samples alone, over all that they may be like."""

from __future__ import annotations

import sqlite3

import msgspec
import numpy as np
import pytest

from hetero_hvd.core.advice.advice import Worth
from hetero_hvd.messages import DeviceEquipment, DeviceSample, NodeEquipped, NodeSampled
from hetero_hvd.run.recordings.machine_advice import of_run, of_samples
from hetero_hvd.run.records.reader import Record
from hetero_hvd.run.records.samples import COLUMNS, SCHEMA, SampleTable
from tests.kit.machine_load import GIB, GPU_BYTES, KINDS, samples

AT = 1.8e9 + np.arange(1800.0)


def drawn(name, seed=1):
    """The figures of a machine at such work."""
    return KINDS[name][0](np.random.default_rng(seed), AT)


def said(found, **worth):
    """What is advised."""
    return of_samples(found, 1.0, Worth(**worth), command="show more")


ADVICE = {
    "compute": [],
    "idle": ["idle:b:0"],
    "input from processors": ["limit:input:b:0"],
    "input from disks": ["limit:input:b:0"],
    "input from a network": ["limit:input:b:0"],
    "reductions": ["limit:communication:b:0"],
    "input and reductions": [],
    "waiting, nobody knows for what": [],
    "spinning": [],
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_work_has_its_advice(name):
    """Whatever the seed; with evidence, and nothing where the evidence is missing."""
    for seed in range(5):
        found = said(samples(drawn(name, seed), AT)).advice
        assert [each.id for each in found] == ADVICE[name]
        assert all(each.evidence and each.command == "show more" for each in found)


@pytest.mark.parametrize(("name", "worth", "num"), [
    ("idle", {"seconds": 3600.0}, 0),
    ("idle", {"seconds": 1700.0}, 1),
    ("reductions", {"ratio": 0.99}, 0),
    ("reductions", {"ratio": 0.5}, 1),
])  # fmt: skip
def test_what_is_not_worth_it_is_not_told(name, worth, num):
    """By the bounds that were asked for."""
    assert len(said(samples(drawn(name), AT), **worth).advice) == num


def test_memory_that_grows_is_told_with_the_time_at_which_it_is_full():
    """And holds: it grows by 36 GiB/h, of 80 GiB 12 are used at first."""
    figures = drawn("compute") | {"gpu.memory_used_bytes": (12 + 0.01 * (AT - AT[0])) * GIB}
    (found,) = said(samples(figures, AT)).advice
    assert found.id == "memory:b:0"
    assert "its memory is full in 1.4 h ± " in found.what  # (80 - 30) / 36
    assert "it grows by 36 GiB/h" in found.evidence[0]


def test_who_holds_an_idle_gpu_is_told():
    """It computes nothing and has memory that others could use."""
    figures = drawn("idle") | {"gpu.memory_used_bytes": np.full(len(AT), 0.5 * GPU_BYTES)}
    (found,) = said(samples(figures, AT)).advice
    assert found.what == "end what holds the memory of b GPU 0 and does not use it"
    assert "40 of 80 GiB are held" in found.evidence


def test_a_gpu_that_stands_still_between_jobs_is_told():
    """And not one that was idle once, before its job."""
    work, idle = drawn("compute"), drawn("idle")
    for pause, expected in ((AT % 360 < 150, ["idle:b:0"]), (AT[0] + 700 > AT, [])):
        mixed = {name: np.where(pause, idle[name], work[name]) for name in work}
        assert [each.id for each in said(samples(mixed, AT)).advice] == expected


def scrambled(found):
    """In no order."""
    return [found[place] for place in np.random.default_rng(0).permutation(len(found))]


def gapped(found):
    """Of every ten minutes two are missing."""
    return [each for each in found if (each[1] - AT[0]) % 600 >= 120]


ORDERS = {"in order": list, "in no order": scrambled, "with gaps": gapped,
          "twice": lambda found: found + found}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["idle", "input from disks", "reductions"])
def test_order_and_gaps_do_not_change_the_advice(name, order):
    """Lives of an agent overlap, and links are cut."""
    found = said(ORDERS[order](list(samples(drawn(name), AT))))
    assert [each.id for each in found.advice] == ADVICE[name]


FEW = {
    "nothing": [],
    "one sample": list(samples(drawn("idle"), AT))[:1],
    "ten": list(samples(drawn("idle"), AT))[:10],
    "at one time": [(node, AT[0], told) for node, _, told in
                    list(samples(drawn("idle"), AT))[:100]],
}  # fmt: skip


def test_memory_of_which_only_the_size_is_known_is_not_judged():
    """As of an old kernel, by a node exporter."""
    found = [("b", at, NodeSampled(node="b", cpu_use_ratio=0.5, memory_total_bytes=2.0**36))
             for at in AT[:100]]  # fmt: skip
    assert said(found).advice == ()


@pytest.mark.parametrize("name", FEW)
def test_too_little_has_no_advice(name):
    """Nor does it fail."""
    assert said(FEW[name]).advice == ()


def test_two_gpus_are_told_apart():
    """One idles, one is bound by its input."""
    busy, idle = (list(samples(drawn(name), AT, gpu=number))
                  for number, name in enumerate(("input from disks", "idle")))  # fmt: skip
    both = [
        (node, at, msgspec.structs.replace(told, devices=told.devices + other.devices))
        for (node, at, told), (_, _, other) in zip(busy, idle, strict=True)
    ]
    assert {each.id for each in said(both).advice} == {"limit:input:b:0", "idle:b:1"}


def test_who_is_saturated_is_told_beside_who_is_idle():
    """The next job has its place there; use of 100 % alone is no saturation."""
    for name, expected in (("compute", "saturated by what they do: a GPU 0"), ("spinning", None)):
        both = [*samples(drawn(name), AT, "a"), *samples(drawn("idle"), AT)]
        (idle,) = (each for each in said(both).advice if each.kind == "idle")
        told = [line for line in idle.evidence if line.startswith("saturated")]
        assert told == ([expected] if expected else [])


def equipped():
    """What the machine is made of, as its run tells it."""
    gpu = DeviceEquipment(index=0, name="H100", memory_bytes=GPU_BYTES)
    return NodeEquipped(node="b", memory_bytes=256 * GIB, devices=(gpu,))


RUN_ADVICE = {
    "idle": ({}, ["idle:b:0"]),
    "reductions": ({}, []),
    "compute": ({"gpu.memory_used_bytes": (12 + 0.01 * (AT - AT[0])) * GIB}, ["memory:b:0"]),
}


@pytest.mark.parametrize("name", RUN_ADVICE)
def test_machines_of_a_run_are_judged_by_its_rows(name):
    """What is idle, and memory that fills up; what binds it is measured by itself."""
    more, expected = RUN_ADVICE[name]
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(SCHEMA)
    table = SampleTable(connection)
    for _, at, sample in samples(drawn(name) | more, AT):
        table.add(at, sample)
    table.close()
    rows = connection.execute("SELECT * FROM samples").fetchall()
    connection.close()
    record = Record(
        events=((AT[0], equipped()),),
        rollups=(),
        samples=tuple(dict(zip(COLUMNS, row, strict=True)) for row in rows),
    )
    found = of_run(record, Worth(), "show more").advice
    assert [each.id for each in found] == expected
    assert of_run(Record(events=(), rollups=()), Worth(), "").advice == ()


def test_gpus_stand_in_the_order_of_their_indices():
    """The tenth after the second."""
    found = [("b", at, NodeSampled(node="b", devices=tuple(
        DeviceSample(index=index, use_ratio=0.5) for index in (10, 2)))) for at in AT[:3]
    ]  # fmt: skip
    names = [line.partition(":")[0] for line in said(found).seen if "kind of job" in line]
    assert names == ["b GPU 2", "b GPU 10"]
