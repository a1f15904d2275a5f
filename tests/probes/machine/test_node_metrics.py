"""A machine's exporter tells of its GPUs, unless somebody else does."""

import shutil
import socket
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetero_hvd.core.view.metric_names import DEVICE, NODE, PREFIX
from hetero_hvd.probes.gpu.device_metrics import DCGM_PORT, is_dcgm_here

PAGE = """
from prometheus_client import generate_latest
from hetero_hvd.probes.machine.node_metrics import node_registry
registry = node_registry("alpha", devices="{devices}")
found = [generate_latest(registry).decode() for _ in range(2)][1]
"""
FIRST = "GPU-11111111-2222-3333-4444-555555555555"
SECOND = "GPU-66666666-7777-8888-9999-000000000000"


def values(page):
    """(name, labels but the node's) to value."""
    return {
        (s.name.removeprefix(PREFIX), *(v for k, v in s.labels.items() if k != "node")): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }


@pytest.fixture
def dcgm():
    """Something that listens where dcgm-exporter does."""
    with socket.create_server(("127.0.0.1", DCGM_PORT)):
        yield


def test_every_name_of_the_tables_is_exported(with_gpus):
    """A machine with a GPU that supports everything has a sample of each family."""
    page = with_gpus(PAGE.format(devices="always"))
    names = {family.name for family in text_string_to_metric_families(page) if family.samples}
    assert names == {PREFIX + entry.name for entry in (*NODE, *DEVICE)}


def test_the_numbers_are_those_of_the_gpus(with_gpus):
    """Each GPU is known by its UUID; what it does not support is absent."""
    found = values(with_gpus(PAGE.format(devices="always")))
    assert found["device_info", FIRST, "Fake H100"] == 1
    assert found["device_utilization_ratio", FIRST] == 0.87
    assert found["device_energy_joules_total", FIRST] == 1234.5
    assert found["device_throttled_seconds_total", FIRST, "power"] == 2.5
    assert found["device_nvlink_bytes_total", FIRST, "transmit"] == 3000 * 1024
    assert found["device_errors_total", FIRST, "ecc_uncorrected"] == 1
    of_second = {name for name, *labels in found if SECOND in labels}
    assert of_second == {
        "device_info",
        "device_utilization_ratio",
        "device_memory_used_bytes",
        "device_memory_total_bytes",
        "device_power_watts",
        "device_clock_hertz",
    }


def test_a_broken_sensor_is_counted(with_gpus):
    """Each scrape in which a call fails counts one error; the rest of the page is there."""
    found = values(with_gpus(PAGE.format(devices="always")))
    assert found["agent_collect_errors_total", "device"] == 2
    assert found["agent_collect_errors_total", "node_cpu_seconds"] == 0
    found = values(with_gpus(PAGE.format(devices="always"), "mismatch"))
    assert found["agent_collect_errors_total", "device"] == 2
    assert not [name for name, *_ in found if name.startswith("device_")]


@pytest.mark.usefixtures("dcgm")
def test_gpus_are_left_to_dcgm_exporter(with_gpus):
    """With `auto` nothing is told twice; the machine's own metrics stay. `always` tells."""
    assert is_dcgm_here()
    found = values(with_gpus(PAGE.format(devices="auto")))
    assert not [name for name, *_ in found if name.startswith("device_")]
    assert ("node_cpu_seconds_total", "user") in found
    assert ("device_power_watts", FIRST) in values(with_gpus(PAGE.format(devices="always")))


def test_never_is_never(with_gpus):
    """An option turns the GPUs off."""
    found = values(with_gpus(PAGE.format(devices="never")))
    assert not [name for name, *_ in found if name.startswith("device_")]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt install prometheus")
def test_promtool_finds_nothing_to_say(with_gpus):
    """The page follows Prometheus' conventions."""
    page = with_gpus(PAGE.format(devices="always"))
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page.encode(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
