"""Nodes and their GPUs as Prometheus sees them."""

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetero_hvd.core.view.metric_names import PREFIX
from hetero_hvd.core.view.sample_metrics import DEVICE, NODE
from hetero_hvd.messages import NodeSampled
from hetero_hvd.probes.sampling.local_samples import NewestSamples

PAGE = """
from msgspec.structs import replace
from prometheus_client import generate_latest
from hetero_hvd.probes.machine.node_metrics import node_registry
from hetero_hvd.probes.sampling.node_sampler import NodeSampler
sampler = NodeSampler()
sampler.take()
sample = replace(sampler.take(), node="alpha", package_power_watts=1.0, package_energy_joules=1.0)
sample = replace(sample, cpu_temperature_celsius=50.0)
if {has_xid}:
    sample = replace(sample, devices=(replace(sample.devices[0], xid=79), sample.devices[1]))
found = generate_latest(node_registry(lambda: [sample])).decode()
"""
FIRST = ("0", "GPU-11111111-2222-3333-4444-555555555555")
SECOND = ("1", "GPU-66666666-7777-8888-9999-000000000000")


def values(page):
    """(name, labels but the node's) to value."""
    return {
        (s.name.removeprefix(PREFIX), *(v for k, v in s.labels.items() if k != "node")): s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
    }


def test_every_name_of_the_tables_is_exported(with_gpus):
    """A machine with a GPU that supports everything has a sample of each family."""
    page = with_gpus(PAGE.format(has_xid=True))
    names = {family.name for family in text_string_to_metric_families(page) if family.samples}
    assert names == {PREFIX + entry.name for entry in (*NODE, *DEVICE)}


def test_the_numbers_are_those_of_the_gpus(with_gpus):
    """Each GPU is known by its number and UUID; what it does not support is absent."""
    found = values(with_gpus(PAGE.format(has_xid=False)))
    assert {FIRST, SECOND} == {key[1:3] for key in found if key[0] == "gpu_use_ratio"}
    wanted = {
        ("gpu_info", "Fake H100"): 1,
        ("gpu_use_ratio",): 0.87,
        ("gpu_energy_joules_total",): 1234.5,
        ("gpu_throttled", "thermal"): 1,
        ("gpu_throttled_seconds_total", "power"): 2.5,
        ("gpu_nvlink_bytes_per_second", "transmit"): 0,
        ("gpu_pcie_bytes_per_second", "receive"): 2 * 2**20,
        ("gpu_dram_active_ratio",): 0.42,
        ("gpu_errors_total", "ecc_uncorrected"): 1,
        ("gpu_processes",): 1,
    }
    told = {(name, *words): value for name, *words, value in flat(found, FIRST)}
    assert {key: told[key] for key in wanted} == wanted
    assert {name for name, *_ in flat(found, SECOND)} == {
        "gpu_info",
        "gpu_use_ratio",
        "gpu_processes",
        "gpu_memory_used_bytes",
        "gpu_memory_total_bytes",
        "gpu_power_watts",
        "gpu_clock_hertz",
        "gpu_errors_total",
    }
    assert found["node_sample_problems",] == 1  # a sensor of the second one is broken


def flat(found, device):
    """Of one device: (name, its own labels, value)."""
    for (name, *labels), value in found.items():
        if all(label in labels for label in device):
            yield (name, *(label for label in labels if label not in device), value)


def test_a_node_without_news_is_absent():
    """What was true some time ago says nothing about now; another node's stay."""
    now = [0.0]
    newest = NewestSamples(10.0, lambda: now[0])
    newest.take(NodeSampled(node="alpha"))
    now[0] = 8.0
    newest.take(NodeSampled(node="beta"))
    newest.take("something else on the bus")
    assert [sample.node for sample in newest()] == ["alpha", "beta"]
    now[0] = 10.1
    assert [sample.node for sample in newest()] == ["beta"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt install prometheus")
def test_promtool_finds_nothing_to_say(with_gpus):
    """The page follows Prometheus' conventions."""
    page = with_gpus(PAGE.format(has_xid=True))
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page.encode(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
