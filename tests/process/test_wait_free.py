"""Wait-free rounds in a real job: unequal workers, no plan, and one that is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = """
import os, signal
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import hetero_hvd

SIZE, BATCH, EPOCHS = 600, 32, 2
model = torch.nn.Linear(SIZE, 1, bias=False, dtype=torch.float64)
torch.nn.init.zeros_(model.weight)
rows = TensorDataset(torch.eye(SIZE, dtype=torch.float64))
loader = DataLoader(rows, BATCH, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
trainer = hetero_hvd.Trainer(model, optimizer, loader, micro_batch_size=4)
num_samples = 0
for epoch in trainer.epochs(EPOCHS):
    for (mine,) in trainer.batches():
        trainer.step(lambda rows: model(rows).mean(), mine)
        num_samples += len(mine)
        mark, is_beta = Path("killed"), os.environ["HETERO_HVD_WORKER"] == "beta:0"
        if is_beta and trainer.applied_steps >= 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    found = trainer.evaluate(lambda rows: {"mean": model(rows).mean()}, loader)
Path(os.environ["HETERO_HVD_WORKER"][:-2]).write_text(str(num_samples))
if trainer.is_leader:
    error = (model.weight * BATCH / EPOCHS + 1).abs().max().item()
    print(f"error {error:.1e} mean {found['mean'] * BATCH / EPOCHS:.6f}")
"""


def test_each_sample_counts_once_through_a_kill(tmp_path):
    """Every sample has moved its own parameter once in each epoch; the slow worker did less."""
    (tmp_path / "train.py").write_text(SCRIPT)
    speeds = {"alpha": 0.004, "beta": 0.004, "gamma": 0.02}
    nodes = [
        {"name": name, "slots": 1, "devices": [], "emulate": {"seconds_per_sample": seconds}}
        for name, seconds in speeds.items()
    ]
    (tmp_path / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    words = ["run", "--wait-free", "--output", "out", "--", "python", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "hetero_hvd", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "killed").exists()
    error, mean = re.search(r"error (\S+) mean (\S+)", done.stdout).groups()
    assert float(error) < 1e-5
    assert float(mean) == pytest.approx(-1.0, abs=1e-5)
    assert int((tmp_path / "gamma").read_text()) < int((tmp_path / "alpha").read_text())
