"""A slow link is found by `hetero-hvd bench-comm`, with its direction."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.kit.virtual_cluster import INTERFACE

pytestmark = [pytest.mark.cluster, pytest.mark.process, pytest.mark.timeout(120)]

SLOW_BYTES_PER_SECOND = 50e6 / 8


def test_the_matrix_shows_who_sends_slowly(virtual_cluster, tmp_path):
    """What gamma sends is held to 50 Mbit/s: its row is slow, its column is not."""
    cluster = virtual_cluster({"alpha": 200, "beta": 200, "gamma": 200})
    nodes = [
        cluster[name].node(slots=1, devices=[], directory=str(tmp_path)) for name in cluster.hosts
    ]
    (tmp_path / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    words = ["bench-comm", "--ops", "broadcast", "--max-bytes", "1048576", "--seconds", "8"]
    words += ["--output", "out", "--heartbeat-timeout-seconds", "30"]
    rate = ["rate", "50mbit", "burst", "16kb", "latency", "200ms"]
    cluster["gamma"].run(["tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", *rate])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hetero_hvd", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        cluster["gamma"].run(["tc", "qdisc", "del", "dev", INTERFACE, "root"])
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "out" / "comm.json").read_text())
    names = [worker.partition(":")[0] for worker in facts["workers"]]
    speeds = {
        (a, b): facts["links"][i][j] for i, a in enumerate(names) for j, b in enumerate(names)
    }
    slow = [speeds["gamma", other] for other in ("alpha", "beta")]
    others = [s for (a, b), s in speeds.items() if a not in (b, "gamma")]
    assert all(0 < speed < 1.5 * SLOW_BYTES_PER_SECOND for speed in slow), done.stdout
    assert min(others) > 2 * max(slow), done.stdout
