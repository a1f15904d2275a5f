"""What a machine does, from the kernel's files, whatever is missing among them."""

import math
import shutil

import pytest

from hetero_hvd.probes.machine.machine_meter import MachineMeter

PROC = {
    "stat": "cpu  {0} 0 0 {1} 0 0 0 0 0 0\ncpu0 1 2 3 4\nintr 9\n",
    "meminfo": "MemTotal: 8192 kB\nMemFree: 1024 kB\nMemAvailable: 2048 kB\n",
    "net/dev": "Inter-|\n face |\n    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0: {0} 0 0 0 0 0 0 0 {1} 0\n"
    " br0: {0} 0 0 0 0 0 0 0 {1} 0\n",
    "diskstats": "8 0 sda 1 0 {0} 0 1 0 {1} 0\n 8 1 sda1 1 0 {0} 0 1 0 {1} 0\n"
    "7 0 loop0 1 0 {0} 0 1 0 {1} 0\n",
}
SYS = {
    "class/net/eth0/device/vendor": "x",
    "block/sda/size": "1",
    "block/loop0/size": "1",
    "class/hwmon/hwmon0/name": "nvme\n",
    "class/hwmon/hwmon0/temp1_input": "99000\n",
    "class/hwmon/hwmon1/name": "coretemp\n",
    "class/hwmon/hwmon1/temp1_input": "51000\n",
    "class/hwmon/hwmon1/temp2_input": "61500\n",
    "class/powercap/intel-rapl:0/name": "package-0\n",
    "class/powercap/intel-rapl:0/energy_uj": "{2}\n",
    "class/powercap/intel-rapl:0/max_energy_range_uj": "1000000000\n",
    "class/powercap/intel-rapl:0:0/name": "core\n",
    "class/powercap/intel-rapl:0:0/energy_uj": "7\n",
}


def write(folder, first, second, energy):
    """The kernel's files, with these counters."""
    for place, files in (("proc", PROC), ("sys", SYS)):
        for name, text in files.items():
            path = folder / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(first, second, energy))


def two_looks(folder, change=lambda _: None, after=(300, 500, 999_000_000)):
    """The second of two samples, 2 s later, and its problems."""
    write(folder, 100, 300, 990_000_000)
    change(folder)
    meter = MachineMeter(folder / "proc", folder / "sys")
    meter.take(math.nan)
    write(folder, *after)
    change(folder)
    return meter.take(2.0)


EXPECTED = {
    "cpu_use_ratio": 0.5,
    "memory_used_bytes": 6 * 2**20,
    "memory_total_bytes": 8 * 2**20,
    "network_received_bytes_per_second": 100,
    "network_sent_bytes_per_second": 100,
    "disk_read_bytes_per_second": 100 * 512,
    "disk_written_bytes_per_second": 100 * 512,
    "package_power_watts": 4.5,
    "package_energy_joules": 9,
    "cpu_temperature_celsius": 61.5,
}


def test_rates_are_means_since_the_sample_before(tmp_path):
    """Of real network cards and whole disks; of the packages, not of what is in them."""
    figures, problems = two_looks(tmp_path)
    figures.pop("load")
    assert figures == pytest.approx(EXPECTED)
    assert problems == []


def gone(*names):
    """Takes files away."""

    def change(folder):
        for name in names:
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).unlink(missing_ok=True)

    return change


def broken(name, text):
    """Writes something else into a file."""
    return lambda folder: (folder / name).write_text(text)


ABSENT = {
    "no RAPL": (gone("sys/class/powercap"), ("package_power_watts", "package_energy_joules"), 0),
    "RAPL is for root": (
        gone("sys/class/powercap/intel-rapl:0/energy_uj"),
        ("package_power_watts", "package_energy_joules"),
        0,
    ),
    "no sensors": (gone("sys/class/hwmon"), ("cpu_temperature_celsius",), 0),
    "no such sensor": (
        gone("sys/class/hwmon/hwmon1"),
        ("cpu_temperature_celsius",),
        0,
    ),
    "no disks": (
        gone("proc/diskstats"),
        ("disk_read_bytes_per_second", "disk_written_bytes_per_second"),
        1,
    ),
    "no memory": (gone("proc/meminfo"), ("memory_used_bytes", "memory_total_bytes"), 1),
    "a kernel before MemAvailable": (
        broken("proc/meminfo", "MemTotal: 1 kB\n"),
        ("memory_used_bytes", "memory_total_bytes"),
        1,
    ),
    "garbage in the processors": (broken("proc/stat", "cpu a b\n"), ("cpu_use_ratio",), 1),
    "nothing in the processors": (broken("proc/stat", ""), (), 0),
}


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_missing_costs_no_other_figure(tmp_path, name):
    """It is absent, or not a number; named where it should be there."""
    change, absent, num_problems = ABSENT[name]
    figures, problems = two_looks(tmp_path, change)
    assert not set(absent) & {name for name, value in figures.items() if math.isfinite(value)}
    others = EXPECTED.keys() - set(absent) - {"cpu_use_ratio"}
    assert {name: figures[name] for name in others} == {name: EXPECTED[name] for name in others}
    assert len(problems) == num_problems


BEGUN_ANEW = {
    "a counter fell": ((50, 100, 999_000_000), "network_received_bytes_per_second", math.nan),
    "the energy's counter wrapped": ((300, 500, 2_000_000), "package_power_watts", 6.0),
}


@pytest.mark.parametrize(("after", "figure", "expected"), BEGUN_ANEW.values(), ids=BEGUN_ANEW)
def test_a_counter_that_begins_anew_gives_no_nonsense(tmp_path, after, figure, expected):
    """Never a negative rate; of one whose range is known, the right one."""
    figures, _ = two_looks(tmp_path, after=after)
    assert figures[figure] == pytest.approx(expected, nan_ok=True)


def test_this_machine_is_sampled():
    """The real files."""
    meter = MachineMeter()
    meter.take(math.nan)
    figures, problems = meter.take(0.1)
    assert 0 <= figures["cpu_use_ratio"] <= 1 or math.isnan(figures["cpu_use_ratio"])
    assert 0 < figures["memory_used_bytes"] < figures["memory_total_bytes"]
    assert problems == []
