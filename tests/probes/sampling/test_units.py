"""Each figure is in the unit that its name ends in: counters of a known slope, through the sampler.

What is received differs everywhere from what is sent, and so does each of two counters from the
other: none can be taken for another one.
"""

from __future__ import annotations

import json

import pytest

from hetero_hvd.core.view.sample_metrics import DEVICE, NODE, device_values, node_values
from hetero_hvd.messages import DeviceSample, NodeSampled

SECONDS = 4.0
"""Between the two samples."""

TOOK_SECONDS = 0.5
PROC = {
    "stat": "cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n",
    "meminfo": "MemTotal: 8192 kB\nMemFree: 1024 kB\nMemAvailable: 2048 kB\n",
    "net/dev": "\n\n  eth0: {received} 0 0 0 0 0 0 0 {sent} 0\n",
    "diskstats": "8 0 sda 1 0 {read} 0 1 0 {written} 0\n",
}
SYS = {
    "class/net/eth0/device/vendor": "x",
    "block/sda/size": "1",
    "class/hwmon/hwmon1/name": "coretemp\n",
    "class/hwmon/hwmon1/temp1_input": "61500\n",
    "class/powercap/intel-rapl:0/name": "package-0\n",
    "class/powercap/intel-rapl:0/energy_uj": "{package}\n",
    "class/powercap/intel-rapl:0/max_energy_range_uj": "1000000000000\n",
}
KERNEL = {  # counter: each second so much more
    "busy": 30, "idle": 70, "received": 1000, "sent": 3000, "read": 7, "written": 11,
    "package": 45_000_000,
}  # fmt: skip
DRIVER = {"energy": 300_000, "throttled": 10**8, "nvlink_received": 500, "nvlink_sent": 200}
NOW = {
    "use": 60, "power": 298_500, "temperature": 71, "sm_clock": 1500, "memory_clock": 2600,
    "pcie_received": 900, "pcie_sent": 300,
}  # fmt: skip

OF_NODE = {
    "seconds": SECONDS,
    "took_seconds": TOOK_SECONDS,
    "at_unix_seconds": 1.7e9,
    "cpu_use_ratio": 0.3,
    "memory_used_bytes": 6144 * 1024,
    "memory_total_bytes": 8192 * 1024,
    "network_received_bytes_per_second": 1000,
    "network_sent_bytes_per_second": 3000,
    "disk_read_bytes_per_second": 7 * 512,
    "disk_written_bytes_per_second": 11 * 512,
    "package_power_watts": 45,
    "package_energy_joules": 45 * SECONDS,
    "cpu_temperature_celsius": 61.5,
}
OF_DEVICE = {
    "use_ratio": 0.6,
    "memory_used_bytes": 81559 * 2**18,
    "memory_total_bytes": 81559 * 2**20,
    "temperature_celsius": 71,
    "power_watts": 298.5,
    "energy_joules": 300 * SECONDS,
    "sm_clock_hertz": 1.5e9,
    "memory_clock_hertz": 2.6e9,
    "throttled_seconds": {"power": 0.1 * SECONDS, "thermal": 0.0},
    "pcie_received_bytes_per_second": 900 * 1024,
    "pcie_sent_bytes_per_second": 300 * 1024,
    "nvlink_received_bytes_per_second": 500 * 1024,
    "nvlink_sent_bytes_per_second": 200 * 1024,
    "dram_active_ratio": 0.42,
}
UNITS = (
    "_bytes",
    "_bytes_per_second",
    "_celsius",
    "_hertz",
    "_joules",
    "_ratio",
    "seconds",
    "_watts",
)

PROGRAM = """
import os
from pathlib import Path
import msgspec
from hetero_hvd.probes.machine.machine_meter import MachineMeter
from hetero_hvd.probes.sampling import node_sampler
place = Path({place!r})
os.environ["FAKE_NVML_FOLDER"] = str(place / "gpu")

def write(seconds):
    files = {{f"gpu/{{name}}": str(slope * seconds) for name, slope in {driver!r}.items()}}
    files |= {{f"gpu/{{name}}": str(value) for name, value in {now!r}.items()}}
    kernel = {{name: slope * seconds for name, slope in {kernel!r}.items()}}
    for folder, texts in (("proc", {proc!r}), ("sys", {sys!r})):
        files |= {{f"{{folder}}/{{name}}": text.format(**kernel) for name, text in texts.items()}}
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)

write(0)
node_sampler.MachineMeter = lambda: MachineMeter(place / "proc", place / "sys")
times = iter((100.0, 100.0, 100.0 + {seconds}, 100.0 + {seconds} + {took}))
sampler = node_sampler.NodeSampler(lambda: next(times), lambda: 1.7e9)
sampler.take()
write(int({seconds}))
found = msgspec.json.encode(sampler.take()).decode()
"""


@pytest.fixture
def sample(with_gpus, tmp_path):
    """The second of two."""
    program = PROGRAM.format(
        place=str(tmp_path), driver=DRIVER, now=NOW, kernel=KERNEL, proc=PROC, sys=SYS,
        seconds=SECONDS, took=TOOK_SECONDS,
    )  # fmt: skip
    return json.loads(with_gpus(program))


def test_each_figure_with_a_unit_is_in_it(sample):
    """All that there are; none is left out of the table."""
    for kind, expected in ((NodeSampled, OF_NODE), (DeviceSample, OF_DEVICE)):
        assert {n for n in kind.__struct_fields__ if n.endswith(UNITS)} == expected.keys()
    device = sample["devices"][0]
    throttled = device.pop("throttled_seconds")
    expected = {name: value for name, value in OF_DEVICE.items() if name in device}
    assert {name: sample[name] for name in OF_NODE} == pytest.approx(OF_NODE, rel=1e-5)
    assert {name: device[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert throttled == pytest.approx(OF_DEVICE["throttled_seconds"])


DIRECTIONS = {
    ("receive",): "_received_",
    ("transmit",): "_sent_",
    ("read",): "_read_",
    ("write",): "_written_",
}


def test_metrics_keep_directions_apart():
    """What is received is no metric of what is sent, nor what is read of what is written."""
    node, device = NodeSampled(**OF_NODE), DeviceSample(**OF_DEVICE)
    told = [(entry, node_values(entry, node), OF_NODE) for entry in NODE]
    told += [(entry, device_values(entry, device), OF_DEVICE) for entry in DEVICE]
    seen = set()
    for entry, values, figures in told:
        if entry.labels != ("direction",):
            continue
        subject = entry.name.partition("_")[2].partition("_bytes")[0]
        for labels, value in values.items():
            (name,) = (n for n in figures if n.startswith(subject) and DIRECTIONS[labels] in n)
            assert value == figures[name]
            seen.add(name)
    both = OF_NODE | OF_DEVICE
    assert seen == {name for name in both if name.endswith("_per_second")}
