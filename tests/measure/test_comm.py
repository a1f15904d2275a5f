"""`hetero-hvd bench-comm`: operations, links, correctness, table, plot and JSON."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from hetero_hvd.cli import main
from hetero_hvd.cli.measure.bench_comm import _unused
from hetero_hvd.core.bandwidth import OPERATIONS
from hetero_hvd.measure.comm import in_words, show
from hetero_hvd.measure.curves import plot
from hetero_hvd.messages import CommMeasured, OperationMeasured, WorkerId

WORKERS = tuple(WorkerId(name, 0) for name in ("alpha", "beta", "gamma"))


def measured(op="allreduce", num_wrong=0, num_bytes=2**20):
    """One operation at one size."""
    return OperationMeasured(
        op=op,
        backend="gloo",
        num_bytes=num_bytes,
        count=10,
        min_seconds=0.001,
        median_seconds=0.002,
        p99_seconds=0.004,
        num_wrong=num_wrong,
    )


def found(*operations):
    """By three workers, with one link left out."""
    links = ((0.0, 1e9, 2e9), (0.5e9, 0.0, 0.0), (1e8, 1e9, 0.0))
    return CommMeasured(workers=WORKERS, operations=operations, link_bytes=4 * 2**20, links=links)


@pytest.mark.process
def test_three_workers_measure_every_operation_and_link(tmp_path):
    """Real Horovod: all results are right, all links have a speed, the files hold the figures."""
    nodes = [{"name": worker.node, "slots": 1, "devices": []} for worker in WORKERS]
    (tmp_path / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    words = ["--max-bytes", "2048", "--seconds", "4", "--heartbeat-timeout-seconds", "30"]
    done = subprocess.run(
        [sys.executable, "-m", "hetero_hvd", "bench-comm", "--output", "out", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "out" / "comm.json").read_text())
    assert facts["workers"] == sorted(map(str, WORKERS))
    assert {entry["op"] for entry in facts["operations"]} == set(OPERATIONS)
    assert all(entry["num_wrong"] == 0 for entry in facts["operations"])
    assert all(entry["count"] >= 5 for entry in facts["operations"])
    assert all(0 < e["min_seconds"] <= e["median_seconds"] for e in facts["operations"])
    for number, row in enumerate(facts["links"]):
        assert [speed > 0 for speed in row] == [place != number for place in range(3)]
    assert "reducescatter  gloo" in done.stdout


def test_a_wrong_result_is_shown_and_is_a_failure(tmp_path, capsys):
    """The exit code is 1, and the line says how many elements."""
    assert show(found(measured(), measured("alltoall", num_wrong=3)), tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[-1] == "yes"
    assert lines[3].endswith("3 WRONG")
    assert show(found(measured()), tmp_path) == 0


def test_bandwidths_are_those_of_nccl_tests(tmp_path):
    """1 MiB in 2 ms among three: algbw S/t; a sum's busbw is 4/3 of it, a broadcast's the same."""
    show(found(measured(), measured("broadcast", num_bytes=1000)), tmp_path)
    total, broadcast = json.loads((tmp_path / "comm.json").read_text())["operations"]
    assert total["algorithm_bytes_per_second"] == pytest.approx(2**20 / 0.002)
    assert total["bus_bytes_per_second"] == pytest.approx(4 / 3 * 2**20 / 0.002)
    assert broadcast["bus_bytes_per_second"] == pytest.approx(1000 / 0.002)


def test_the_matrix_shows_what_was_not_measured():
    """A dash, no zero; sizes in their unit."""
    lines = list(in_words(found(measured(), measured(num_bytes=1000))))
    assert lines[2].split()[2:4] == ["1", "MiB"]
    assert lines[3].split()[2:4] == ["1000", "B"]
    assert lines[-2].split() == ["beta:0", "0.5", "-", "-"]


def test_the_plot_is_a_picture_of_its_curves():
    """Well-formed, one line and one name each, inside the frame; an empty one is no accident."""
    curves = {"a <b>": [(1024.0, 0.01), (2.0**26, 3.0)], "c": [(2048.0, 0.5)]}
    root = ET.fromstring(plot("Links", curves, x="bytes", y="GB/s"))  # noqa: S314 - our own
    lines = [node for node in root.iter() if node.tag.endswith("polyline")]
    places = [place.split(",") for node in lines for place in node.get("points").split()]
    assert len(lines) == 2
    assert all(0 <= float(x) <= 760 and 0 <= float(y) <= 380 for x, y in places)
    assert "a <b>" in [node.text for node in root.iter() if node.tag.endswith("text")]
    ET.fromstring(plot("Nothing", {}, x="bytes", y="GB/s"))  # noqa: S314


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ops", "allreduce,gossip"], "found 'gossip', must be some of allreduce"),
        (["--max-bytes", "8"], "found 8, must be from 1024"),
        (["--seconds", "nan"], "found nan, must be from 1 to 3600"),
    ],
)
def test_wrong_input_is_one_line(words, says, capsys):
    """Before anything is started."""
    assert main(["bench-comm", *words]) == 2
    assert says in capsys.readouterr().err


def test_each_measurement_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    """A second one is a run of its own, as any other."""
    monkeypatch.chdir(tmp_path)
    assert _unused("bench-comm") == "bench-comm"
    for name in ("bench-comm", "bench-comm-2"):
        (tmp_path / name).mkdir()
    assert _unused("bench-comm") == "bench-comm-3"
