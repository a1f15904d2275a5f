"""A real job that is exported while it runs: to a file, and to a server that never answers."""

import csv
import json
import re
import urllib.request
from pathlib import Path

import pytest

from hetero_hvd.run.records.reader import read_record
from hetero_hvd.run.reports.quality import curves_of
from tests.run.sinks import servers

pytestmark = pytest.mark.process
SCRIPT = Path(__file__).with_name("train_logging.py")
ACCURACY = r"held-out accuracy (\S+)"
PASSWORD = "s3cret"  # noqa: S105


def test_a_job_is_exported_while_it_runs(start_job, tmp_path):
    """The held-out accuracy is everywhere the one that the script prints; no secret is anywhere."""
    with servers.silent_port() as port:
        silent = f"influx:http://u:{PASSWORD}@127.0.0.1:{port}/write?token={PASSWORD}"
        exports = f"csv:run.csv {silent}"
        arguments = "--export", exports, "--checkpoint-best", "accuracy"
        job = start_job(*arguments, names=("alpha", "beta"), command=(str(SCRIPT), "3"))
        url = job._url.replace("/status", "/metrics")
        first = float(job.wait_for(ACCURACY)[1])
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
            page = answer.read().decode()
        assert job.wait() == 0
    scraped = re.search(r'hetero_hvd_evaluation\{metric="accuracy",run_id="[^"]+"\} (\S+)', page)
    assert float(scraped[1]) == first
    accuracy = float(re.findall(ACCURACY, "\n".join(job.output))[-1])
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {row["name"]: (int(row["step"]), float(row["value"])) for row in rows}
    assert found["evaluation/accuracy"] == (24, accuracy)
    assert found["run/learning_rate"][1] == 0.05
    assert {"logged/weight", "run/loss", "alpha:0/forward_seconds"} <= found.keys()
    curves = {curve.name: curve for curve in curves_of(read_record(tmp_path / "out"))}
    assert curves["accuracy"].values[-1] == accuracy
    assert curves["step"].steps[-1] == 24
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["exit_code"] == 0
    text = "\n".join(job.output)
    assert "samples were left out; the record has them" in text
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path
    assert PASSWORD not in text
