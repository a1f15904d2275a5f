"""What a recording tells of a job that says nothing, beside what the job says itself."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from hetero_hvd.run.recordings.device_report import summaries_of
from tests.fake_nvml import library as fake_nvml
from tests.hub.rig import HubProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

STEP_SECONDS, NUM_STEPS = 0.9, 24
SCRIPT = f"""
import json, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
import hetero_hvd

power, marks, begun = Path(sys.argv[1]), [], []
model = torch.nn.Linear(2, 1)
data = TensorDataset(torch.randn({2 * NUM_STEPS}, 2), torch.randn({2 * NUM_STEPS}, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = hetero_hvd.Trainer(model, optimizer, DataLoader(data, 2))

def wait_until(num_steps):
    time.sleep(max(0.0, begun[0] + {STEP_SECONDS} * num_steps - time.monotonic()))

def draw(milliwatts):
    partial = power.with_suffix(".partial")
    partial.write_text(str(milliwatts))
    partial.replace(power)

def loss(x, y):
    draw(600_000)
    wait_until(len(marks) - 0.5)
    draw(80_000)
    return ((model(x) - y) ** 2).mean()

for _ in trainer.epochs(1):
    for x, y in trainer.batches():
        begun = begun or [time.monotonic()]
        wait_until(len(marks))
        marks.append(time.time())
        trainer.step(loss, x, y)
Path(sys.argv[2]).write_text(json.dumps(marks))
"""


@pytest.mark.matrix
def test_a_recording_has_the_period_of_the_steps_marks(tmp_path):
    """A training draws power in each step; an agent samples that, and a hub stores it."""
    told = tmp_path / "gpu"
    told.mkdir()
    (told / "power").write_text("80000")
    environment = fake_nvml.environment(fake_nvml.build(tmp_path), told=told)
    hub = HubProcess(tmp_path)
    hub.start()
    words = ["agent", "--key-file", "cluster.key", "--name", "alpha", "--slots", "0"]
    words += ["--hub", str(hub.target), "--address", "127.0.0.1"]
    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "hetero_hvd", *words],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        folder = asyncio.run(_record(hub, tmp_path, told / "power"))
    finally:
        agent.kill()
        agent.wait()
        hub.kill()
    marks = json.loads((tmp_path / "marks.json").read_text())
    step = statistics.fmean(after - before for before, after in pairwise(marks))
    assert len(marks) == NUM_STEPS
    found = {each.device: each.cycle for each in summaries_of(folder)}
    assert found["0"].seconds == pytest.approx(step, rel=0.02)
    assert found["1"] is None  # the other GPU does nothing


async def _record(hub: HubProcess, place: Path, power: Path) -> Path:
    """Train while all machines are recorded; gives the recording."""
    await hub.order("start", name="training", every_seconds=0.25)
    (place / "train.py").write_text(SCRIPT)
    (place / "nodes.yaml").write_text("nodes: [{name: alpha, slots: 1, devices: []}]\n")
    words = ["run", "--", "train.py", str(power), str(place / "marks.json")]
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hetero_hvd", *words, cwd=place, stdout=-3, stderr=-3
    )
    assert await run.wait() == 0
    await hub.order("stop", name="training")
    return place / "hub" / "recordings" / "training"
