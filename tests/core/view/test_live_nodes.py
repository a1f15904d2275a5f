"""What nodes and GPUs do now, on the page and in `top`."""

import json

import msgspec
import pytest

from hetero_hvd.cli.watch.live_table import table_of
from hetero_hvd.core.view.live import LiveView
from hetero_hvd.core.view.live_nodes import users_in_words
from hetero_hvd.messages import DeviceSample, DeviceUser, NodeSampled, RunEnded

BUSY = DeviceSample(
    index=3,
    uuid="u",
    name="H100",
    use_ratio=0.87,
    memory_used_bytes=40 * 2**30,
    memory_total_bytes=80 * 2**30,
    temperature_celsius=64.0,
    power_watts=350.0,
    throttle_reasons=("power_cap",),
    xid=79,
    used_by=(DeviceUser(pid=123, user="alice", command="train.py", job="r50"),),
)
SAMPLE = NodeSampled(
    node="alpha",
    cpu_use_ratio=0.5,
    memory_used_bytes=2**30,
    memory_total_bytes=4 * 2**30,
    devices=(BUSY, DeviceSample(index=4)),
)


def view_of(*events):
    """What is shown after these."""
    view = LiveView(list)
    for at_unix_seconds, event in events:
        view.observe(at_unix_seconds, event)
    return view.state()


def test_who_uses_a_gpu_is_one_line():
    """For each process; what is not told is a question mark."""
    assert list(users_in_words(SAMPLE)) == [
        "gpu 3: pid 123 alice train.py job r50",
        "gpu 4: no process seen",
    ]
    assert str(DeviceUser(pid=7)) == "pid 7 ? ?"


def test_top_shows_nodes_gpus_and_users():
    """A dash where nothing is told; nothing that the terminal would act on."""
    lines = list(table_of(view_of((0.0, SAMPLE))))
    start = next(number for number, line in enumerate(lines) if line.startswith("alpha:"))
    assert lines[start:] == [
        "alpha: CPU 50%  memory 1.0 of 4.0 GiB  -",
        "  gpu 3: H100  87%  memory 40.0 of 80.0 GiB  64 °C  350 W  held back: power_cap, XID 79",
        "    gpu 3: pid 123 alice train.py job r50",
        "  gpu 4:   -  memory -  -  -",
    ]
    evil = msgspec.structs.replace(SAMPLE, devices=(DeviceSample(name="a\x1b[2J"),))
    assert not any("\x1b" in line for line in table_of(view_of((0.0, evil))))


def test_the_page_gets_null_for_what_is_not_told():
    """JSON has no NaN."""
    (node,) = json.loads(msgspec.json.encode(view_of((0.0, SAMPLE))))["nodes"]
    assert node["power_watts"] is None
    assert node["devices"][0]["used_by"] == ["pid 123 alice train.py job r50"]
    assert node["devices"][1]["use_ratio"] is None


AGES = {
    "told each second": ([0.0, 1.0], 11.0, 1),
    "not for long": ([0.0, 1.0], 11.1, 0),
    "told each minute": ([0.0, 60.0], 230.0, 1),
    "told each minute, not for long": ([0.0, 60.0], 241.0, 0),
    "a clock that was set back": ([100.0, 50.0], 60.0, 1),
}


@pytest.mark.parametrize(("told_at", "now", "num_nodes"), AGES.values(), ids=AGES)
def test_a_node_that_tells_nothing_is_not_shown(told_at, now, num_nodes):
    """What it did some time ago says nothing about now."""
    ending = (now, RunEnded(exit_code=0, reason=""))
    assert len(view_of(*((at, SAMPLE) for at in told_at), ending).nodes) == num_nodes
