"""The same series recorded and loaded into a real Prometheus have the same advice."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import msgspec
import numpy as np
import pytest

from hetero_hvd.cli import main
from hetero_hvd.core.recording.segments import Recorded
from hetero_hvd.core.recording.sessions import RecordingSession
from hetero_hvd.run.recordings.folder import write_recording
from hetero_hvd.run.recordings.frames import RecordedFrame
from tests.kit.machine_load import GIB, KINDS, samples
from tests.leftovers import wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="apt install prometheus"),
]

EVERY, NUM = 1, 900
"""A quarter of an hour."""

DCGM = {
    "DCGM_FI_DEV_GPU_UTIL": lambda gpu: round(100 * gpu.use_ratio),
    "DCGM_FI_DEV_FB_USED": lambda gpu: round(gpu.memory_used_bytes / 2**20),
    "DCGM_FI_DEV_FB_FREE": lambda gpu: round(
        (gpu.memory_total_bytes - gpu.memory_used_bytes) / 2**20
    ),
    "DCGM_FI_DEV_POWER_USAGE": lambda gpu: gpu.power_watts,
    "DCGM_FI_DEV_SM_CLOCK": lambda _: 1980,
    "DCGM_FI_PROF_DRAM_ACTIVE": lambda gpu: gpu.dram_active_ratio,
}
COUNTERS = {
    "node_disk_read_bytes": ("sda", "disk_read_bytes_per_second"),
    "node_network_receive_bytes": ("eth0", "network_received_bytes_per_second"),
    "node_network_transmit_bytes": ("eth0", "network_sent_bytes_per_second"),
}
"""Of the node exporter: what they count, of which device."""


def machines(end):
    """Four machines, each at other work, and one of whose GPU the memory grows."""
    at = end - EVERY * np.arange(NUM)[::-1].astype(float)
    for node, name in enumerate(("idle", "compute", "input from processors", "reductions")):
        figures = KINDS[name][0](np.random.default_rng(node), at)
        if name == "compute":
            held = 0.01 * (at - at[0]) + np.random.default_rng(9).normal(0, 0.1, NUM)
            figures["gpu.memory_used_bytes"] = (10 + held) * GIB
        yield f"m{node}", list(samples(figures, at, f"m{node}", gpu=node % 2))


def lines(found):
    """OpenMetrics, metric by metric, as exporters name and label them; counters start anew once."""
    table = {}
    for node, told in found:
        sums = dict.fromkeys((*COUNTERS, "idle"), 1e6)
        labels = f'instance="10.0.0.{node[1]}:9100"'
        for place, (_, at, sample) in enumerate(told):
            if place == NUM // 3:
                sums = dict.fromkeys(sums, 0.0)  # the machine has been started anew
            gpu = sample.devices[0]
            own = f'gpu="{gpu.index}",Hostname="{node}",UUID="GPU-{node}",instance="x:9400"'
            for name, value in DCGM.items():
                table.setdefault((name, "gauge"), []).append(f"{name}{{{own}}} {value(gpu)} {at}")
            for name, (device, field) in COUNTERS.items():
                sums[name] += EVERY * getattr(sample, field)
                row = f'{name}_total{{device="{device}",{labels}}} {sums[name]!r} {at}'
                table.setdefault((name, "counter"), []).append(row)
            sums["idle"] += EVERY * (1 - sample.cpu_use_ratio)
            row = f'node_cpu_seconds_total{{cpu="0",mode="idle",{labels}}} {sums["idle"]!r} {at}'
            table.setdefault(("node_cpu_seconds", "counter"), []).append(row)
            for name, value in {
                "node_load1": 1.0,
                "node_memory_MemTotal_bytes": sample.memory_total_bytes,
                "node_memory_MemAvailable_bytes": (
                    sample.memory_total_bytes - sample.memory_used_bytes
                ),
                f'node_uname_info{{nodename="{node}"': 1,
            }.items():
                bare, _, more = name.partition("{")
                row = f"{bare}{{{more + ',' if more else ''}{labels}}} {value} {at}"
                table.setdefault((bare, "gauge"), []).append(row)
    for (name, kind), rows in table.items():
        yield f"# TYPE {name} {kind}"
        yield from rows
    yield "# EOF"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A Prometheus that holds the series, and a recording of the same; its port and the folder."""
    place = tmp_path_factory.mktemp("loaded")
    end = float(time.time() // 1)
    found = list(machines(end))
    (place / "series.txt").write_text("\n".join(lines(found)) + "\n")
    words = ["create-blocks-from", "openmetrics", place / "series.txt", place / "data"]
    subprocess.run(["promtool", "tsdb", *map(str, words)], check=True, stdout=-3)
    (place / "prometheus.yml").write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    vector = ["prometheus", f"--config.file={place / 'prometheus.yml'}"]
    vector += [f"--storage.tsdb.path={place / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(vector, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_ready(port), 30, "Prometheus")
        yield port, recording(place / "recorded", found)
    finally:
        process.terminate()
        process.wait()


def is_ready(port):
    """Whether it answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def recording(folder, found):
    """A folder with the same samples, as a hub writes it."""
    frames = [
        RecordedFrame(node, f"s-{node}", Recorded(place + 1, int(at * 1e6), encoded(sample)))
        for node, told in found
        for place, (_, at, sample) in enumerate(told)
    ]
    begin, end = frames[0].recorded.at_microseconds, frames[-1].recorded.at_microseconds
    session = RecordingSession(name="same", from_microseconds=begin, every_seconds=EVERY)
    write_recording(folder, session, frames, until_microseconds=end)
    return folder


def encoded(sample):
    """As an agent sends it."""
    return msgspec.msgpack.encode(sample)


def advised(capsys, *words):
    """What the command says, as data."""
    assert main(["advise", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def _nothing_is_declined(tmp_path, monkeypatch):
    """By whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_the_same_series_have_the_same_advice(loaded, capsys):
    """With DCGM's names and the node exporter's, whose counters start anew once."""
    port, folder = loaded
    here = advised(capsys, folder)
    there = advised(capsys, "--prometheus", f"http://127.0.0.1:{port}", "--hours", "0.3")
    assert sorted(each["id"] for each in here["advice"]) == [
        "idle:m0:0",
        "limit:communication:m3:1",
        "limit:input:m2:0",
        "memory:m1:1",
    ]
    assert [each["id"] for each in there["advice"]] == [each["id"] for each in here["advice"]]
    for mine, theirs in zip(here["advice"], there["advice"], strict=True):
        assert (mine["what"], mine["gains"]) == (theirs["what"], theirs["gains"])
    assert of_gpus(there) == of_gpus(here)
    for each in (*here["advice"][:1], *there["advice"][:1]):
        assert main(shlex.split(each["command"])[1:]) == 0  # as it is printed


def of_gpus(said):
    """What they do; rates of a machine by a counter have rounded digits of their own."""
    return [line.partition("while")[0] for line in said["seen"] if "GPU" in line]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--match", 'Hostname="nobody"'], "it has no series of dcgm-exporter, the node exporter"),
        (["--match", "Hostname=m0"], "has answered with status 400: invalid parameter"),
        (["--match", "}"], "has answered with status 400: invalid parameter"),
    ],
)
def test_a_match_that_fits_nothing_is_one_line(loaded, capsys, words, said):
    """As Prometheus puts it."""
    port, _ = loaded
    assert main(["advise", "--prometheus", f"http://127.0.0.1:{port}", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_only_what_matches_is_judged(loaded, capsys):
    """One node's GPU, without its machine, of which the node exporter has other labels."""
    port, _ = loaded
    words = ("--prometheus", f"http://127.0.0.1:{port}/api/v1/", "--match", 'Hostname="m0"')
    assert [each["id"] for each in advised(capsys, *words)["advice"]] == ["idle:m0:0"]


@pytest.mark.parametrize(("hours", "worth", "is_told"), [
    ("0.1", "10m", False),
    ("0.1", "5m", True),
    ("1", "10m", True),
])  # fmt: skip
def test_the_newest_hours_of_a_recording(loaded, capsys, hours, worth, is_told):
    """Of which a device may be idle for less than is worth to be told."""
    _, folder = loaded
    found = advised(capsys, folder, "--hours", hours, "--worth", worth)["advice"]
    assert ("idle:m0:0" in [each["id"] for each in found]) == is_told
