"""A benchmark of the user's own script on all nodes; the next job starts with what it has found."""

import json
import os
import re
import subprocess
import sys

import pytest

from hetero_hvd.driver.node_benchmark import curve_of
from hetero_hvd.messages.benchmark import ModelMeasured, SizeMeasured

SCRIPT = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import hetero_hvd

if sys.argv[1] == "broken":
    raise ImportError("no such library")
inputs = torch.randn(256, 8)
model = torch.nn.Linear(8, 1)
trainer = hetero_hvd.Trainer(
    model,
    torch.optim.SGD(model.parameters(), lr=0.01),
    DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16),
)

def loss(x, y):
    time.sleep(float(os.environ.get("HINDRANCE", "0")) * len(x))
    return torch.nn.functional.mse_loss(model(x), y)

for epoch in trainer.epochs(int(sys.argv[1])):
    for x, y in trainer.batches():
        trainer.step(loss, x, y)
"""
VERDICTS = ("valid", "noisy", "too few repeats")
NODES = """
nodes:
  - {name: alpha, slots: 1, devices: [], emulate: {seconds_per_sample: 0.01}}
  - name: beta
    slots: 1
    devices: []
    emulate: {seconds_per_sample: 0.03}
    env: {HINDRANCE: "%s"}
"""


@pytest.fixture
def hetero_hvd(tmp_path):
    """Run the command line in a folder with two unequal nodes and the script."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "nodes.yaml").write_text(NODES % 0)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "hetero_hvd", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.process
@pytest.mark.timeout(150)
def test_the_first_plan_and_the_stragglers_are_judged_by_the_benchmark(hetero_hvd, tmp_path):
    """Curves as emulated; the first shares fit them; who is slower than then is slow at once."""
    done = hetero_hvd("benchmark", "--seconds", "8", "--json", "--", "train.py", "1000")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    found = {one["worker"]: one for one in said["slots"]}
    for worker, slope in (("alpha:0", 0.01), ("beta:0", 0.03)):
        model = found[worker]["model"]
        assert model["seconds_per_sample"] == pytest.approx(slope, rel=0.25)
        assert model["read_samples_per_second"] > 0
        assert found[worker]["is_kept"]
    formats = {speed["dtype"] for speed in found["alpha:0"]["device"]["speeds"]}
    assert {"float32", "float64"} <= formats
    assert "[beta:0] 1 samples in " in done.stderr
    assert said["network"]["workers"] == ["alpha:0", "beta:0"]
    assert {entry["op"] for entry in said["network"]["operations"]} == {"allreduce", "broadcast"}
    assert all(entry["verdict"] in VERDICTS for entry in said["network"]["operations"])
    assert [[speed > 0 for speed in row] for row in said["network"]["links"]] == [[0, 1], [1, 0]]
    assert said["network"]["link_verdicts"][0][1] in VERDICTS

    # Now beta is hindered, from its first step on: in this job it was never faster.
    (tmp_path / "nodes.yaml").write_text(NODES % 0.05)
    job = hetero_hvd("run", "--output", "runs/next", "--", "train.py", "2")
    assert job.returncode == 0, job.stdout + job.stderr
    start = r"shares alpha:0 (\d+) \| beta:0 \d+: start: 2 of 2 workers were measured before"
    assert int(re.search(start, job.stdout)[1]) in (11, 12, 13)
    assert "beta:0 is slow" in job.stdout


@pytest.mark.process
def test_a_script_that_fails_is_told_with_its_last_lines(hetero_hvd):
    """Exit code 1; the devices were measured all the same; no curve is kept."""
    done = hetero_hvd("benchmark", "--no-network", "--seconds", "1", "--", "train.py", "broken")
    assert done.returncode == 1
    assert "ImportError: no such library" in done.stdout
    assert "matrix product float32" in done.stdout
    assert "the next run" not in done.stdout


def test_wrong_input_is_one_line(hetero_hvd):
    """A missing script or file, and no time at all, are told before anything is measured."""
    for words, reason in (
        (["--", "missing.py"], "missing.py: no such file"),
        (["-f", "other.yaml"], "other.yaml: no such file"),
        (["--seconds", "0"], "--seconds: found 0, must be from 0.1 to 86400"),
        (["--seconds", "inf"], "--seconds: found inf, must be"),
    ):
        done = hetero_hvd("benchmark", *words)
        assert done.returncode == 2
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1


def measured(*spreads):
    """A model's sizes with these spreads."""
    return ModelMeasured(
        device="d",
        model="m",
        global_batch_size=64,
        micro_batch_size=0,
        sizes=tuple(
            SizeMeasured(
                local_batch_size=2**power,
                busy_seconds=0.01 + 0.001 * 2**power,
                spread_ratio=ratio,
                num_steps=9,
            )
            for power, ratio in enumerate(spreads)
        ),
        overhead_seconds=1.0,
        seconds_per_sample=1.0,
        read_samples_per_second=None,
    )


def test_a_curve_is_made_of_what_is_valid():
    """Noise is left out; where too little is left there is none, and the job starts evenly."""
    curve = curve_of(measured(0.01, 0.5, 0.02, None))
    assert (curve.smallest_share, curve.largest_share) == (1, 4)
    assert curve.model.seconds_per_sample == pytest.approx(0.001)
    assert curve_of(measured(0.5, 0.01, None)) is None
    assert curve_of(measured()) is None
